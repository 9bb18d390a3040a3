"""The plugin host-device, and the move of a device into a sandbox and back, which sriov uses too.

plugin      the verbs of host-device
devices     finds a device by a selector, and recognises it in another namespace; has the plan of a move
moved       moves a device into the sandbox and back
hoststate   reads the state of a device on the host; finds state that forbids the move, or that a DEL cannot restore
restore     restores the state of a device that is back on the host
"""
