"""The plugin macvlan: a link with its own MAC on a master, made inside the sandbox.

plugin      the verbs of macvlan
planning    the configuration, and the plan of the link            pure
check       compares the link with the plan and the configuration
"""
