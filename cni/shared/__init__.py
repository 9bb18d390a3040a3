"""The ground that `cni` and `ipam` share: messages, checked configurations, the kernel, records and locks, the log."""
