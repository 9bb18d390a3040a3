"""The resources that a node offers: their configuration with all its faults, the devices that are chosen, and what a container
gets with them; for the device plugin, `railcni vfs` and the linter."""
