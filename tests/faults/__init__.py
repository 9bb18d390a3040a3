"""Faults: plugins killed, stopped, failed by the kernel and cut off by a power loss at every point that matters.

tree        a copy of the plugins, with planted faults when asked
trace       what strace writes, as calls; which of them are points of a sweep
inject      one call of a plugin under strace, with a fault at a point
state       what stands on disk and in the kernel, and what is wrong with it
scene       a node with a victim and a bystander attached to one network
cases       what is done to the victim, and how it goes on afterwards
backing     where the leases stand: a file, etcd or an API server, put back before each case
gate        what every request to such a server passes
served      what the server or the network does to one request of a call
stopped     a DEL while an ADD is stopped
devices     the devices of that node
whole       all of the node that a continuation can meet: one text for one state
filestate, kernelstate   its files, its namespaces
known_good         in which states all is known to go well
runner      goes through faults at points, and on from every state that they leave
sweep       every operation x fault x point x continuation
journal     a recorded log of what was written, and the disks that a power loss may leave of it
history     calls that are recorded so, and what must stand at any point of them
powerloss   every such disk brought back to life by the plugins
churn       many attachments at once and random kills: a history, and whether it keeps the promises
soak        the same for an hour: what stands must not grow
plugin_machine, plugin_model   random calls in random order, against a model that is plain dicts
"""
