"""The plugin sriov: a virtual function (VF), set through its physical function, goes into a sandbox and comes back.

plugin      the verbs of sriov; the move itself is that of cni.plugins.host_device
vf          the settings of a VF by its PF: set, and put back
go_cache    the files of Go's sriov-cni, whose attachments end here
"""
