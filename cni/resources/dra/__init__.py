"""The program `railcni dra`, a driver for Dynamic Resource Allocation (DRA); its options are in cni/cli/devices.py."""
