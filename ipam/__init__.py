"""railcni's IPAM side: ranges, the search for addresses, the stores and the plugin `whereabouts`."""
