"""The resources that a node offers: the configuration and its faults, the devices of each resource, and their device
nodes and variables. The device plugin, the DRA driver, `railcni vfs` and the lint use this package."""
