"""Names that the lint knows beside the keys of our own plugins: other plugins, and the keys that runtimes read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cni import plugins
from cni.library.installation.layout import PLAIN
from cni.plugins import LINK_PLUGINS
from cni.shared.config import slip

OWN_IPAM = "whereabouts"
OWN_CHAINED = "rdma"
PREFIX = "railcni-"


def own(name: str) -> str:
    """The name of our executable without its prefix, so "macvlan" for "railcni-macvlan"; "" for another's."""
    plain = name.removeprefix(PREFIX)
    return plain if plain in PLAIN else ""


LINKS = {
    "accelerated-bridge", "aws-cni", "azure-vnet", "bridge", "calico", "cilium-cni", "cnv-bridge", "dummy",
    "flannel", "ib-sriov", "ib-sriov-cni", "ipoib", "ipvlan", "kindnet", "kube-ovn", "macvtap", "multus",
    "multus-shim", "ovn-k8s-cni-overlay", "ovs", "ptp", "tap", "userspace", "vlan", "weave-net",
    *LINK_PLUGINS, *(PREFIX + name for name in LINK_PLUGINS),
}  # fmt: skip
"""Plugins that make an interface or move one: the first of a chain, and one alone (containernetworking/plugins and others)."""

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
"""Plugins that make a link of their own, which no verbs device belongs to: `rdma` finds none to move."""

OF_MULTUS = ("deviceID", "pciBusID", "resourceName")
"""Keys that Multus writes for an allocated device, or reads."""

OF_LISTS = ("cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins")


PLUGINS = LINKS | CHAINED | IPAMS


def near(word: str, names: Iterable[str]) -> str:
    """The one of `names` that was most likely meant by `word`, or ""."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(_bare(name), name)
    bare = _bare(word)
    found = difflib.get_close_matches(bare, folded, n=1, cutoff=0.75)
    return folded.get(found[0] if found else slip(bare, folded), "")  # mut for mtu


def remedy(word: str, names: Iterable[str], otherwise: str = "remove it") -> str:
    """The remedy for the unknown `word`: the one of `names` that was most likely meant."""
    likely = near(word, names)
    return f'write "{likely}"' if likely else otherwise


def _bare(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
