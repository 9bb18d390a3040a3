"""The program `railcni device-plugin`; its options are in cni/cli/device_plugin.py."""
