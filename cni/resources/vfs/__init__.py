"""`railcni vfs`: the virtual functions of cards, and their changes to match the device plugin's configuration."""
