"""JSON and YAML documents that people write, with the place (line and column) of each value and each fault.

reader       reads files and text as documents               models     the keys of a network that a runtime reads
tree         the values of a document, and their places      networks   finds and reads a network
diagnostic   a fault, its message, and a document with its faults
"""

NET_DIRECTORY = "/etc/cni/net.d"  # where all runtimes look for networks by default
