"""The base of `cni` and `ipam`: messages, checks of configurations, the kernel, records and locks, the log."""
