"""This node: its devices and attachments, the installation, calls to plugins, and the services of programs."""
