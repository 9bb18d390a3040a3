"""Documents that people write, JSON and YAML, with the place of each part and of their faults.

reader    text becomes documents               jsontext     JSON with its places     tree   a document
text      places in a file                     diagnostic   a fault with its place and remedy
scope     a document that notes diagnostics    refusals     of pydantic's models, in this project's words
"""

NET_DIRECTORY = "/etc/cni/net.d"  # the place of networks, by convention of all runtimes
