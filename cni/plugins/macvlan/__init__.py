"""The plugin macvlan: a link of its own MAC on top of a master, made inside the sandbox.

plugin      the verbs of macvlan
planning    the configuration, and the link to make                pure
check       the link against the plan and the configuration
"""
