"""The agent, which frees the leases of pods that are gone; the audit of leases; and the IPAM webhook for DRANET."""
