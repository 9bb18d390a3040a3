"""The search for leases whose pods are gone, and the freeing of these leases.

`railcni ipam` (cni.cli.ipam) and the collector of the agent (cni.cluster.agent.collector) use these modules.

model        pods, nodes, networks and pools as values, parsed from objects of the API            pure
cluster      a client of the API server, which reads its lists in pages
snapshot     reads a store and its cluster, and applies the rules to them
silence      the Leases that show which agents are alive, and the Lease that shows which agent is elected
findings     the kinds of findings
lease_rules  the comparison of leases and reservations with pods; leases of deleted nodes             pure
store_rules  the faults inside a store, and the comparison of leases with records                 pure
occupancy    how full a pool is                                                                   pure
store        the choice of the store for a command or the agent
in_use       whether an address may be in use on this machine; the locks of an attachment
free         the freeing of a dead lease, after a last check of the lease
"""
