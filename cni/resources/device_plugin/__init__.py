"""The program `railcni device-plugin`; its options are in cni/cli/devices.py."""
