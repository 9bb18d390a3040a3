"""railcni's IPAM: ranges, the search for addresses, the stores of leases, and the plugin `whereabouts`."""
