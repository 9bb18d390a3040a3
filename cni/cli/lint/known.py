"""Names that a lint knows besides the keys of our own plugins: plugins of others, and what runtimes read themselves."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cni.cli.installation.layout import PLAIN

OWN_IPAM = "whereabouts"
OWN_CHAINED = "rdma"
OWN_LINKS = tuple(name for name in PLAIN if name not in (OWN_IPAM, OWN_CHAINED))
PREFIX = "railcni-"
_LEAST_LETTERS = 5  # in shorter names one letter makes another word

LINKS = frozenset(
    [
        "accelerated-bridge",
        "aws-cni",
        "azure-vnet",
        "bridge",
        "calico",
        "cilium-cni",
        "cnv-bridge",
        "dummy",
        "flannel",
        "host-device",
        "ib-sriov",
        "ib-sriov-cni",
        "ipoib",
        "ipvlan",
        "kindnet",
        "kube-ovn",
        "macvlan",
        "macvtap",
        "multus",
        "multus-shim",
        "ovn-k8s-cni-overlay",
        "ovs",
        "ptp",
        "sriov",
        "tap",
        "userspace",
        "vlan",
        "weave-net",
    ]
)
"""Plugins that make an interface or move one: the first of a chain, and one alone (containernetworking/plugins and others)."""

CHAINED = frozenset(
    [
        "bandwidth",
        "cnv-tuning",
        "coordinator",
        "firewall",
        "ifb",
        "istio-cni",
        "linkerd-cni",
        "loopback",
        "portmap",
        "railcni-rdma",
        "rdma",
        "route-override",
        "sbr",
        "tuning",
        "vrf",
    ]
)
"""Plugins that change what those before them in the chain have made."""

IPAMS = frozenset(
    [
        "calico-ipam",
        "dhcp",
        "host-local",
        "ipam-static",
        "kube-ovn",
        "nv-ipam",
        "railcni-whereabouts",
        "spiderpool",
        "static",
        "whereabouts",
    ]
)
"""Plugins that an `ipam` block can name."""

OF_RUNTIMES = (
    "type",
    "name",
    "cniVersion",
    "cniVersions",
    "capabilities",
    "runtimeConfig",
    "args",
    "prevResult",
    "dns",
    "ipam",
)
"""Keys of every plugin (SPEC.md, section 1, and CONVENTIONS.md): the runtime reads or writes them."""

OF_MULTUS = ("deviceID", "pciBusID", "resourceName")
"""Keys that Multus writes for an allocated device, or reads."""

OF_LISTS = ("cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins")


PLUGINS = LINKS | CHAINED | IPAMS | {*OWN_LINKS} | {PREFIX + name for name in PLAIN}


def own(name: str) -> str:
    """The executable of ours that `name` is: "" when none; "railcni-macvlan" is macvlan."""
    plain = name.removeprefix(PREFIX)
    return plain if plain in PLAIN else ""


def meant(name: str) -> str:
    """As `own`, for a name that may be misspelled."""
    return own(name) or own(slip(name, (name for name in PLUGINS if own(name))))


def near(word: str, names: Iterable[str]) -> str:
    """The one of `names` that was most likely meant by `word`, or ""."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(_bare(name), name)
    found = difflib.get_close_matches(_bare(word), folded, n=1, cutoff=0.75)
    return folded[found[0]] if found else ""


def slip(word: str, names: Iterable[str]) -> str:
    """The one of `names` that `word` is but for its case, its - and _, or one letter too many, missing, wrong or swapped
    with the next; "" when none is.

    It is no slip where two plugins may well be called so: macvlan2 is somebody's own, ovn is not ovs.
    """
    candidates = (name for name in names if len(name) >= _LEAST_LETTERS or own(name))
    return next((name for name in candidates if _is_slip(_bare(word), _bare(name))), "")


def _is_slip(word: str, name: str) -> bool:
    same = next((i for i, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), min(len(word), len(name)))
    if word[same : same + 1].isdigit():
        return False
    left, right = word[same:], name[same:]
    return left == right[1:] or left[1:] == right or left[1:] == right[1:] or left[1::-1] + left[2:] == right


def _bare(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
