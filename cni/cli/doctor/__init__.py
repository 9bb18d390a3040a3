"""`railcni doctor`: finds faults of this node that keep RDMA in pods from working, with remedies. It changes nothing.

Each module of checks has functions that read facts, and functions that judge them. Most judging functions are pure.
The module `report` runs the checks.
"""
