"""Rail groups: a container gets addresses with the same index on all rails of its group."""
