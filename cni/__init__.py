"""railcni's CNI side: the protocol, the kernel, the link plugins and the command."""
