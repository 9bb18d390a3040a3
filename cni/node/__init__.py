"""This node: its devices and attachments, the installation, calls of plugins, services."""
