"""The program `railcni agent`; its options are in cni/cli/agent.py.

work             the agent put together, as tasks; it also retries pending releases
loop             the one loop that runs the tasks
nodefiles        kubeconfig, token, flat file, node name
collector        one pass over all leases: it frees the dead ones and restores lost ones
grace            which leases are dead, and since when                                        pure
node_leases      the leases in this node's records, and how a lost one is restored
cluster_stores   the stores in the cluster, as the collector reads them
election         the agent that frees the leases of no node
server           the API server, in requests of a bounded time
events, health   reports

A lease is freed by cni/library/audit/free.py, as for `railcni ipam reclaim`.
"""
