"""The base of `cni` and `ipam`: messages, checks of configurations, access to the kernel, records, locks, the log."""
