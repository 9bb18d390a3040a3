"""The plugin host-device, and the move that it shares with sriov: a device goes into a sandbox and comes back as it was.

plugin      the verbs of host-device
devices     a device is found by a selector, and known again in another namespace; the plan of its move
moved       the move of a device, and its way back
hoststate   the state of a device on the host: saved, a reason against the move, or lost
restore     a device that is back gets its former state
"""
