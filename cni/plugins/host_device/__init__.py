"""The plugin host-device, and the move that it shares with sriov: a device goes into a sandbox and comes back as it was.

plugin      the verbs of host-device
devices     a device is found by a selector, and known again in another namespace
moved       the move of a device, and its way back
planned     the plan of a move as the record has it
hoststate   the state of a device on the host: saved, a reason against the move, or lost
restore     a device that is back gets its former state
missing     whether a device that cannot be found still exists
"""
