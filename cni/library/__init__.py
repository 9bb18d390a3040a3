"""The library of the programs: the command, the agent and the device plugin.

audit          leases: one client of the cluster, snapshot, rules (pure), free
documents      files that people write
installation   a version of railcni in a plugin folder
inventory      this node's devices, sandboxes and attachments
lint           the faults of a network
resources      the configuration of the device plugin and of vfs
runtime        calls of plugins, as a container runtime makes them
service        log, metrics and HTTP endpoint of a program that keeps running
vfs            the virtual functions that a node's cards should have, and how they are made
"""
