"""The configuration of the resources that a node offers: read, with all its faults, for the device plugin, `railcni vfs` and the linter."""
