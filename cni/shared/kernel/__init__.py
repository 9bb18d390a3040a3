"""The only code that touches the kernel: namespaces, netlink, locks, sysfs, durable files."""
