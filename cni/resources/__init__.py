"""The resources that a node offers to pods: the configuration and its faults, and each resource's devices with their
device nodes and variables. The device plugin, the DRA driver, `railcni vfs` and `railcni nad lint` use this package."""
