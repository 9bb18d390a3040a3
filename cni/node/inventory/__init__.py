"""This node's RDMA devices, PCI topology, network namespaces and attachments."""
