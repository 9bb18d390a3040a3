"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

ADD and DEL never open the namespace at CNI_NETNS, since some callers pass /dev/null. ADD saves this path in the lease:
after a reboot, the path shows whether the namespace still exists. Each attachment has a record, a file on this node,
so that a later call can finish the work of a killed call:

    ADD   writes the record, which names store and addresses, before it claims a lease. So each lease has a record
    DEL   removes the record after it has released the leases. So the record stays as long as a lease may exist
"""
