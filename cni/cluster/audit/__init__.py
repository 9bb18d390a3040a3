"""Leases whose pods are gone: a snapshot reads them, pure rules name them, and each is read once more before it is freed.

`railcni ipam` (cni.cli.ipam) and the collector of the agent (cni.cluster.agent.collector) both consist of these parts.

model        what a cluster holds beside leases, of objects of the API: pods, nodes, networks      pure
cluster      the API server, as command and agent read it: ipam.stores.apiserver in pages
snapshot     all that a store and its cluster hold, and what the rules find in it
lost         whether a lease's node is lost                                               pure
silence      the Lease of each node's agent, which tells that the agent lives
findings     what can be wrong
lease_rules  leases and reservations beside pods, and the addresses that pods show            pure
store_rules  a store by itself, and leases beside records                                     pure
occupancy    how full a pool is                                                               pure
store        a store that a command or the agent speaks of
in_use       whether an address may be in use on this machine; the locks of the operations that change it
free         frees one dead lease: it is read and judged again right before
"""
