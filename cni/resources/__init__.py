"""The resources that a node offers: the configuration and its faults, the devices of each resource, and what a
container gets with them. The device plugin, the DRA driver, `railcni vfs` and the lint use this package."""
