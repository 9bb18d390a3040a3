"""`railcni doctor`: finds faults of this node that keep RDMA of pods from working, with remedies. It changes nothing.

Each file has a group of checks: functions that read facts, and pure functions that judge them. `report` runs them.
"""
