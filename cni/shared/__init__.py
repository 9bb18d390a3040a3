"""Code that `cni` and `ipam` share: CNI messages, checks of configurations, kernel access, records, locks, the log."""
