"""railcni's CNI side: the protocol, the kernel, the link plugins and the command."""

VERSION = "0.1.0"  # of railcni
