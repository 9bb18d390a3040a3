"""railcni's IPAM side: ranges, the allocator, the stores and the plugin `whereabouts`."""
