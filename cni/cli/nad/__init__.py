"""railcni nad: checks and renders networks, and prints their JSON Schema."""
