"""The leases of a cluster: the agent, and the audit that the agent and the command share."""
