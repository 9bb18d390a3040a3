"""This node: devices and attachments, railcni's installation, calls to plugins, and programs' log and HTTP endpoint."""
