"""railcni install and uninstall, and the installation in `railcni status`."""
