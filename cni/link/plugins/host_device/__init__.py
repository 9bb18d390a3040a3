"""The plugin host-device, and the move that it shares with sriov: a device goes into a sandbox and comes back restored.

plugin      the verbs of host-device
devices     finds a device by a selector, and recognises it in another namespace; has the plan of a move
moved       moves a device into the sandbox and back
hoststate   reads the state of a device on the host; finds parts that forbid the move or will be lost
restore     restores the state of a device that is back on the host
"""
