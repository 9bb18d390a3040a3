"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

CNI_NETNS is only a text here, kept with the lease, so that a later boot can test whether the namespace still exists.
ADD and DEL never open the namespace, since some callers pass /dev/null. The order of the writes ensures that after a
kill a later call can finish:

    ADD   writes the record (store, addresses), then claims: each lease has a record
    DEL   releases, then removes the record: the next DEL or GC removes a record without leases
"""
