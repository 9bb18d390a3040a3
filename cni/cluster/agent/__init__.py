"""The program `railcni agent`; its options are in cni/cli/agent.py.

agent            the agent put together, as tasks; it also retries pending releases, and tells the installation's health
loop             the one loop that runs the tasks
nodefiles        kubeconfig, token, flat file, node name
collector        one pass over all leases: it frees the dead ones and restores lost ones
cluster_stores   the stores in the cluster, as the collector reads them: how long leases are dead, lost ones
election         the agent that frees the leases of no node
events           reports

A lease is freed by cni/cluster/audit/free.py, as for `railcni ipam reclaim`.
"""
