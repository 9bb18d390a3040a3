"""The program `railcni dra`, a driver of Kubernetes' Dynamic Resource Allocation (DRA); its options are in cni/cli/dra.py."""
