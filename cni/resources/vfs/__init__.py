"""`railcni vfs`: the virtual functions that cards have, and those that the device plugin's configuration asks for."""
