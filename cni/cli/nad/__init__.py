"""railcni nad: networks checked and written, and their JSON Schema."""
