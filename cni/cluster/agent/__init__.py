"""The program `railcni agent`; its options are in cni/cli/agent.py.

agent            the agent's tasks, made from its options, and its HTTP pages with health and metrics
loop             the loop that runs the tasks
nodefiles        the files that plugins need: kubeconfig with token, flat file (whereabouts.conf) and node name
collector        the task that frees the leases of pods that are gone, and restores lost leases of other pods
cluster_stores   the collector's data about the leases in the API server, and the restoration of a lost lease
events           Events of Kubernetes

In cni/cluster/audit, free.py frees a lease, also for `railcni ipam reclaim`, and silence.py elects the agent that frees
the leases of nodes without an agent.
"""
