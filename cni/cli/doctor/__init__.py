"""`railcni doctor`: whether RDMA of pods can work on this node, and what to do where it cannot. It changes nothing.

A group of checks is one file: what it reads, and pure functions from that to findings. `report` puts them in order.
"""
