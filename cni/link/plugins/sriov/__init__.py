"""The plugin sriov: it configures a virtual function (VF) through its PF, and moves it into a sandbox and back.

plugin      the verbs of sriov; the move itself is in cni.link.plugins.host_device
vf          sets and restores the settings of a VF through its PF
go_cache    reads the files of Go's sriov-cni, by which railcni ends attachments of that plugin
"""
