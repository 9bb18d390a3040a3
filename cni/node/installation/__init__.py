"""The installation: railcni in the plugin folder of a node's container runtime, such as /opt/cni/bin.

    PLUGIN_DIR/
      railcni-macvlan  -host-device  -sriov  -rdma  -whereabouts     links to railcni-bundle/current/bin/macvlan, ...
      macvlan  host-device  sriov  rdma  whereabouts      only with --replace: links to railcni-bundle/current/plain/macvlan, ...
      railcni-bundle/
        VERSION-DIGEST/     a whole version; DIGEST is of its content, so a damaged version is recognised by its name
        current             a link to the version in use
        previous            a link to the version before: it is kept for running calls, and to go back
        replaced/NAME       the file that had a plain name before --replace; uninstall puts it back
        .lock               held by the one installer at work
        .new.*              unfinished files; the next installer removes those of a killed one

Everything that runs lies in the plugin folder and is found by relative links: the folder may be mounted anywhere.
A version is complete and on the disk before `current` leads to it, and `current` and every name change by one rename:
a plugin that is executed during an install is the whole old version or the whole new one. For that a plugin follows
`current` once, at its start: a bundle's finds its real path, a checkout's opens the one file that holds its modules.
"""
