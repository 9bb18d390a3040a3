"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

ADD and DEL never open the namespace at CNI_NETNS, since some callers pass /dev/null. ADD keeps the path with the lease:
after a reboot, the path shows whether the namespace still exists. Each attachment has a record, a file of this node.
Through it a later call can finish the work of a killed call:

    ADD   writes the record, with the store and the addresses, before the claim: each lease has a record
    DEL   removes the record after the release: as long as a lease may remain, the record remains too
"""
