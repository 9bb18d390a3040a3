"""`railcni vfs`: show the virtual functions of cards, and make those of the device plugin's configuration."""
