"""The plugin rdma: in a chain after sriov or host-device, it moves the verbs device into the sandbox too."""
