"""The agent, which frees dead leases; the audit, which the agent and the command share; and the webhook for DRANET."""
