"""`railcni doctor`: finds faults of this node that keep RDMA of pods from working, with remedies. It changes nothing.

A file of checks has functions that read facts, and mostly pure functions that judge them. `report` runs the checks.
"""
