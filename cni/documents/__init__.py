"""JSON and YAML documents that people write, with the place of each value and of each fault.

reader    text becomes documents               jsontext     JSON with its places     tree   a document
text      places in a file                     diagnostic   a fault with its place and remedy
scope     a document that notes diagnostics    refusals     pydantic's errors, in this project's words
"""

NET_DIRECTORY = "/etc/cni/net.d"  # the directory of networks, by convention of all runtimes
