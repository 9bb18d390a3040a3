"""The plugin rdma: in a chain behind sriov or host-device, it moves the verbs device into the sandbox too.

plugin      the verbs of rdma
go_cache    the files of Go's rdma-cni, whose attachments end here
"""
