"""The program `railcni agent`; its options are in cni/cli/agent.py.

agent            the agent's tasks, made from its options, and its pages: the installation's health, and metrics
loop             the loop that runs the tasks
nodefiles        kubeconfig, token, flat file and node name
collector        the task that frees dead leases and restores lost ones
cluster_stores   the collector's view of the stores in the API server: since when leases are dead, which leases are lost
events           Events of Kubernetes

cni/cluster/audit/free.py frees a lease, also for `railcni ipam reclaim`; silence.py has the election of the agent that
frees the leases of nodes without an agent.
"""
