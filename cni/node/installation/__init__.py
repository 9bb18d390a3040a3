"""The installation: railcni in the plugin folder of a node's container runtime, such as /opt/cni/bin.

    PLUGIN_DIR/
      railcni-macvlan  -host-device  -sriov  -rdma  -whereabouts     links to railcni-bundle/current/bin/macvlan, ...
      macvlan  host-device  sriov  rdma  whereabouts      only with --replace: links to railcni-bundle/current/plain/macvlan, ...
      railcni-bundle/
        VERSION-DIGEST/     a complete version; DIGEST is a hash of its content, which shows damage
        current             a link to the version in use
        previous            a link to the version before, kept for running calls and for a return to that version
        replaced/NAME       the file that had a plain name before --replace; uninstall puts it back
        .new.*              unfinished files; after an installer was killed, the next installer removes its files

Only one installer works at a time: it holds a lock (flock) of PLUGIN_DIR itself.

All executables are in the plugin folder, with relative links to them, so the folder may be mounted anywhere. A version
is complete and on the disk before `current` leads to it, and each link changes by one rename. A plugin follows
`current` once, at its start. After that, a bundle's plugin uses the real path that it found, and a checkout's plugin
uses the opened file with all modules. So a plugin that starts during an install runs only old code or only new code.
"""
