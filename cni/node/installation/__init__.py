"""The installation: railcni in the plugin folder of a node's container runtime, such as /opt/cni/bin.

    PLUGIN_DIR/
      railcni-macvlan  -host-device  -sriov  -rdma  -whereabouts     links to railcni-bundle/current/bin/macvlan, ...
      macvlan  host-device  sriov  rdma  whereabouts      only with --replace: links to railcni-bundle/current/plain/macvlan, ...
      railcni-bundle/
        VERSION-DIGEST/     a whole version; DIGEST is the digest of its content, by which damage is recognised
        current             a link to the version in use
        previous            a link to the version before, which is kept for running calls, and to go back
        replaced/NAME       the file that had a plain name before --replace; uninstall puts it back
        .new.*              unfinished files; the next installer removes those of a killed one

The one installer at work holds a lock (flock) of PLUGIN_DIR itself.

All executables are in the plugin folder, with relative links to them, so the folder may be mounted anywhere. A version
is complete and on the disk before `current` leads to it, and each link changes by one rename. So a plugin that is
executed during an install is wholly of the old or wholly of the new version. To ensure this, a plugin follows `current`
once, at its start: in a bundle it finds its real path, in a checkout it opens the one file with all its modules.
"""
