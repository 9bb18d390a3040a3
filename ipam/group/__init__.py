"""Rails of a group: one index of addresses for all rails of a container."""
