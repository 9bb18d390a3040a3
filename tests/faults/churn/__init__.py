"""Many attachments at once, by processes that kill plugins at random times; what they saw is a history to be judged.

events     what a history is made of
checker    whether a history keeps the promises: no address with two owners, what a DEL freed is free   pure
watcher    what the kernel says of addresses in all sandboxes, in the order in which it happened
evidence   what of a history concerns a fault, for people                                             pure
worker     one process of several: random operations, random kills
run        a node, the workers and the watcher together; the history of it
sampling   samples over time, and whether they are flat: for the soak
"""
