"""JSON and YAML documents that people write, with the place (line and column) of each value and of each fault.

reader       text becomes documents                          models     what a runtime reads of a network
diagnostic   a fault, and a document that notes faults       tree       a document, and places in a file
refusals     pydantic's errors, in this project's words      networks   a network
"""

NET_DIRECTORY = "/etc/cni/net.d"  # where all runtimes look for networks by default
