"""The verbs of the link plugins. All link plugins have the same steps, in this order:

    ADD   lock; clear what a killed ADD left; claim the device; plan; write the record (the node's file of the
          attachment); claim the addresses; make the link; configure the link. A failure undoes the completed steps
    DEL   lock; remove the link from the sandbox; release the addresses; remove the record. Every step is tried, but the
          addresses stay leased while the link cannot be removed, since the link may still answer for them
    GC    a DEL for each attachment of this network that has a record, is not in the runtime's list, and is not locked

A foreign IPAM plugin (one of another suite) is called while the link is up: in an ADD after the link is made, in a DEL
before the link is removed. An attachment whose DEL failed or never came is removed by the next ADD, DEL or GC of any
network on the node (cni.link.verbs.gc).

Each call loads only the modules that its verb needs.
"""
