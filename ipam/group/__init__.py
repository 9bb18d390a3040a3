"""Rail groups: a pod gets addresses with the same index on all rails (NICs, each with a subnet) of a group."""
