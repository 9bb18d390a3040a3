"""The plugin host-device, and the move that it shares with sriov: a device goes into a sandbox and comes back restored.

plugin      the verbs of host-device
devices     finds a device by a selector, and recognises it in another namespace; the plan of its move
moved       moves a device into the sandbox and back
hoststate   the state of a device on the host: saved, a reason against the move, or lost
restore     restores the state of a device that is back on the host
"""
