"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

ADD and DEL never open the namespace at CNI_NETNS, since some callers pass /dev/null. They keep the path with the lease:
after a reboot it shows whether the namespace still exists. If a call is killed, a later call can finish its work:

    ADD   writes the record, with the store and the addresses, before the claim: so each lease has a record
    DEL   removes the record after the release: so the next DEL or GC can remove a record whose leases are gone
"""
