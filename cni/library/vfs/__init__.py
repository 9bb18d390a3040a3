"""`railcni vfs`: the virtual functions that cards have, and those that the device plugin's configuration asks for.

plan     the steps that are due (pure)
cards    the cards, as sysfs shows them, and who uses a function
apply    the steps of a plan, done by sysfs

The command is cni/cli/vfs.py.
"""
