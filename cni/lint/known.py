"""Names that the lint knows beside the keys of our own plugins: other plugins, and the keys that runtimes read."""

from __future__ import annotations

from cni.link import plugins
from cni.link.plugins import LINK_PLUGINS
from cni.node.installation.layout import PLAIN

OWN_IPAM = "whereabouts"
OWN_CHAINED = "rdma"
PREFIX = "railcni-"


def own(name: str) -> str:
    """The name of an executable of ours without the prefix: "macvlan" for "railcni-macvlan"; "" for any other name."""
    plain = name.removeprefix(PREFIX)
    return plain if plain in PLAIN else ""


LINKS = {
    "accelerated-bridge", "aws-cni", "azure-vnet", "bridge", "calico", "cilium-cni", "cnv-bridge", "dummy",
    "flannel", "ib-sriov", "ib-sriov-cni", "ipoib", "ipvlan", "kindnet", "kube-ovn", "macvtap", "multus",
    "multus-shim", "ovn-k8s-cni-overlay", "ovs", "ptp", "tap", "userspace", "vlan", "weave-net",
    *LINK_PLUGINS, *(PREFIX + name for name in LINK_PLUGINS),
}  # fmt: skip
"""Plugins that make or move an interface: only the first plugin of a chain may be one (containernetworking/plugins)."""

CHAINED = {
    "bandwidth", "cnv-tuning", "coordinator", "firewall", "ifb", "istio-cni", "linkerd-cni", "loopback",
    "portmap", "railcni-rdma", "rdma", "route-override", "sbr", "tuning", "vrf",
}  # fmt: skip
"""Plugins that change the interface of a plugin before them in the chain."""

IPAMS = {
    "calico-ipam", "dhcp", "host-local", "ipam-static", "kube-ovn", "nv-ipam", "railcni-whereabouts",
    "spiderpool", "static", "whereabouts",
}  # fmt: skip
"""Plugins that an `ipam` block can name."""

SHARING = {"bridge", "dummy", "ipvlan", "macvtap", "ptp", "tap", "vlan"} | {
    name for name in LINKS if own(name) and plugins.named(own(name)).SHARES_NETDEV
}
"""Plugins that make a new link. Such a link has no verbs device, so the plugin `rdma` has nothing to move."""

OF_MULTUS = ("deviceID", "pciBusID", "resourceName")
"""Keys that Multus writes for an allocated device, or reads."""

OF_LISTS = ("cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins")


PLUGINS = LINKS | CHAINED | IPAMS
