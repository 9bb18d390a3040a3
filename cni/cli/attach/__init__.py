"""railcni attach, detach, check, gc and status."""
