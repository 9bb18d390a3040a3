"""The installation: railcni in the plugin folder of a node's container runtime, such as /opt/cni/bin.

    PLUGIN_DIR/
      railcni-macvlan  -host-device  -sriov  -rdma  -whereabouts     links to railcni-bundle/current/bin/macvlan, ...
      macvlan  host-device  sriov  rdma  whereabouts      only with --replace: links to railcni-bundle/current/plain/macvlan, ...
      railcni-bundle/
        VERSION-DIGEST/     a whole version; DIGEST is of all that is in it, so the name says whether it is whole
        current             a link to the version that is used
        previous            a link to the one before: it is kept, for the calls that still run from it and to go back
        replaced/NAME       what stood under a plain name before --replace; uninstall puts it back
        .lock               one installer at a time
        .new.*              what an installer is at; the next one removes what a killed one left

Everything that runs lies in the plugin folder and is found by relative links: the folder may be mounted anywhere.
A version is complete and on the disk before `current` leads to it, and `current` and every name change by one rename:
whoever executes a plugin in the middle of an install gets the whole old version or the whole new one. For that a plugin
goes through `current` once, at its start: a bundle's finds its real path, a checkout's opens the one file that holds
its modules.

layout     names, and the plans: what is there and what is wanted -> steps (pure)
runtimes   where the runtime looks for plugins
below      paths below --root, as the host itself would resolve them
source     what is installed: the bundle in which this command runs, or a checkout's plugin path
files      durable copies, links and removals
facts      what is there
apply      carries out the steps
change     install and uninstall, put together from all these
lock       one installer at a time
running    which processes run from a version
holds      the attachments that only railcni can take apart
health     whether an installation is whole
"""
