"""The lint's rules for one plugin of a network, with the keys and the checks of the plugin's own module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.documents.diagnostic import Scope, shown
from cni.documents.networks import RESOURCE_NAME
from cni.documents.tree import Keys
from cni.link import features, plugins
from cni.link.plugins import LINK_PLUGINS, rdma
from cni.lint import addresses, known
from cni.lint.known import note_faults, proposal, unknown_keys
from cni.shared import rail
from cni.shared.config import Fault, fill, integer, slip
from cni.shared.kernel import rdma_sysfs as rdma_devices
from cni.shared.rail import Rail
from cni.shared.spec.request import NEWEST, SUPPORTED, Request, member
from cni.shared.spec.result import IPV6_LEAST_MTU
from ipam.keys import ADDRESS_KEYS, IPAM_KEYS, RANGE_KEYS

_DNS = tuple(key for key in IPAM_KEYS if key.name.startswith("dns."))
_CAPABILITIES = (  # CONVENTIONS.md of containernetworking/cni
    "aliases", "bandwidth", "cgroupPath", "deviceID", "dns", "infinibandGUID", "ips", "ipRanges", "mac", "portMappings",
)  # fmt: skip
_GATEWAY = tuple(key for key in ADDRESS_KEYS if key.name == "gateway")
SWITCH_MOST = 9216  # the jumbo frames that Ethernet switches commonly carry, in bytes


@dataclass(frozen=True)
class ResourceWant:
    """A request of a network or container for the `resource` of a device plugin, such as "rdma/hca". The request is at
    the path `keys` of the document `scope`. If `at_key` is true, a warning marks the key, not its value."""

    resource: str
    scope: Scope
    keys: Keys
    at_key: bool = False


Claim = tuple[str, str, str]  # kind, namespace and name of a ResourceClaim or its template


@dataclass(frozen=True)
class PodNetworks:
    """A pod: its `networks` as (namespace, name), the `resources` that its containers request, and its resource
    `claims`. The annotation that names the networks is at the path `keys` of the document `scope`."""

    scope: Scope
    keys: Keys
    networks: Sequence[tuple[str, str]]
    resources: set[str]
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of a plugin that its rules need: the plugin's network, and the objects that were read so far.

    The network has a `name` and spec `versions`. `nad` is true if the network is in a NAD. `resource` is the NAD's
    resource. `flat` is the flat file (whereabouts.conf) of the nodes. `uses` are the address ranges of all networks,
    `offers` the resources of device plugins, `wants` the requests for resources, `pods` the pods with networks. `nads`
    maps the (namespace, name) of a NAD to its file, and `resources` maps the same key to the NAD's resource. `requests`
    maps a claim to the (DeviceClass, selected resource) of each of its device requests, and `classes` a DeviceClass to
    its resource.
    """

    name: str = ""
    versions: Sequence[str] = ()
    nad: bool = False
    resource: str = ""
    flat: addresses.FlatFile = field(default_factory=addresses.FlatFile)
    uses: list[addresses.Use] = field(default_factory=list)
    nads: dict[tuple[str, str], str] = field(default_factory=dict)
    offers: set[str] = field(default_factory=set)
    wants: list[ResourceWant] = field(default_factory=list)
    resources: dict[tuple[str, str], str] = field(default_factory=dict)
    pods: list[PodNetworks] = field(default_factory=list)
    requests: dict[Claim, set[tuple[str, str]]] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The newest of `versions` that railcni supports, with which a runtime would call the plugin."""
        usable = [v for v in SUPPORTED if v in self.versions]
        return usable[-1] if usable else NEWEST


def examine(scope: Scope, keys: Keys, document: Mapping[str, Any], around: Surroundings) -> None:
    """Add the faults of the plugin configuration `document`, which is at the path `keys`, to the findings."""
    kind = member(document, "type")
    own = known.own(kind) if isinstance(kind, str) else ""
    rails = member(document, "rail")
    addresses.written(scope, (*keys, "ipam"), member(document, "ipam"))
    if isinstance(rails, dict):
        document = _of_a_rail(scope, keys, document, rails, around)
    _capabilities(scope, (*keys, "capabilities"), member(document, "capabilities"))
    allocated = dict.fromkeys(("deviceID", "pciBusID"), "0000:00:00.0") if around.resource else {}
    called = {**allocated, **document, "name": around.name, "cniVersion": around.version}  # as a runtime calls it
    request = Request({"CNI_COMMAND": "ADD"}, b"", called, {})
    if own in LINK_PLUGINS:
        module = plugins.named(own)
        table = (*module.KEYS, *_DNS, *(features.named(name).KEY for name in features.NAMES))
        nested = {name: features.named(name).KEYS for name in features.NAMES}
        unknown_keys(scope, keys, document, table, f"the plugin {own}", own)
        for name, members in nested.items():
            value = member(document, name)
            if isinstance(value, dict):
                unknown_keys(scope, (*keys, name), value, members, name)
        if isinstance(rails, dict):
            _ranges(scope, (*keys, "rail", "ranges"), member(rails, "ranges"))
        faults: list[Fault] = []
        config = module.read(request, faults)
        asked = features.read(request, faults)
        note_faults(scope, keys, faults, table, nested)
        _same_index(scope, keys, document, asked.get("rail"))
        if not faults:
            _mtu(scope, keys, document, getattr(config, "mtu", 0))
        names = {key.name for key in module.KEYS}
        is_of_device = around.resource or member(rails, "nics")
        if "master" in names and not member(document, "master") and not is_of_device:
            message = "no master is named: the link goes on that of the default route, which is seldom the RDMA netdev"
            scope.warn((*keys, "master"), message, 'add "master": "ens2f0", the name of the RDMA netdev')
        if not module.SHARES_NETDEV:
            _device(scope, keys, document, around, "device" in names)
    elif own == known.OWN_CHAINED:
        unknown_keys(scope, keys, document, rdma.KEYS, f"the plugin {own}", own)
        faults = []
        fill(rdma.RdmaConfig(), rdma.KEYS, document, faults)
        note_faults(scope, keys, faults, rdma.KEYS, {})
    else:
        mtu = member(document, "mtu")
        if mtu is not None and (isinstance(mtu, bool) or not isinstance(mtu, int)):
            scope.error((*keys, "mtu"), f"{shown(mtu)}: want an integer", proposal(integer(0, 65535), mtu))
    addresses.examine(scope, keys, document, request, around.flat, around.uses)


def _capabilities(scope: Scope, keys: Keys, value: object) -> None:
    """Warn of each misspelt name of a known capability in the object `value`, which is at the path `keys`."""
    for name in value if isinstance(value, dict) else ():
        same = next((one for one in _CAPABILITIES if one.lower() == name.lower()), "")  # libcni distinguishes case
        if name not in _CAPABILITIES and (near := same or slip(name, _CAPABILITIES)):
            message = f'runtimes pass no arguments for the capability "{name}"'
            scope.warn((*keys, name), message, f'write "{near}"', at_key=True)


def _of_a_rail(
    scope: Scope, keys: Keys, document: Mapping[str, Any], rails: Mapping[str, Any], around: Surroundings
) -> Mapping[str, Any]:
    """Return the plugin configuration `document`, completed with the ranges that `rail.ranges` has for its rail (a NIC
    of each node). If the network serves all rails, those of rail 0 are used. Add faults of rail.nics to the
    findings."""
    index = member(rails, "index")
    if not member(rails, "nics"):
        return rail.completed(dict(document), index)
    if around.nad and not around.resource:
        message = f"rail.nics need an allocated device, and the NAD has no annotation {RESOURCE_NAME}"
        scope.error((*keys, "rail", "nics"), message, f"add the annotation {RESOURCE_NAME}: DOMAIN/RESOURCE")
    for name in ("range", "ipRanges") if index is None else ():
        if member(document, "ipam", name) is not None:
            message = "is one rail's, and with rail.nics the network is all rails: each has its range in rail.ranges"
            scope.error((*keys, "ipam", name), message, "remove it", at_key=True)
    if index is None and isinstance(member(document, "master"), str) and member(document, "master"):
        message = "is one rail's NIC, and with rail.nics the link goes on the allocated one"
        scope.error((*keys, "master"), message, "remove it", at_key=True)
    return rail.completed(dict(document), 0 if index is None else index)


def _ranges(scope: Scope, keys: Keys, value: object) -> None:
    """Warn of unknown keys of the ranges in `value`, the list rail.ranges or a member of it, at the path `keys`."""
    for i, part in enumerate(value if isinstance(value, list) else []):
        if isinstance(part, dict):
            unknown_keys(scope, (*keys, i), part, (*RANGE_KEYS, *_GATEWAY), "a member of ranges")
        else:
            _ranges(scope, (*keys, i), part)


def _same_index(scope: Scope, keys: Keys, document: Mapping[str, Any], asked: Rail | None) -> None:
    """Check that a network with `"addressing": "same-index"` uses railcni's IPAM plugin, since only this plugin can
    give a pod the same index on all rails (NICs). `asked` is the parsed value of the key `rail`."""
    kind = str(member(document, "ipam", "type"))
    if asked and asked.is_same_index and known.own(kind) != known.OWN_IPAM:
        message = f'"{asked.addressing}" needs the IPAM plugin {known.OWN_IPAM}'
        scope.error((*keys, "rail", "addressing"), message, f'write "{known.OWN_IPAM}" as ipam.type, or "plain" here')


def _mtu(scope: Scope, keys: Keys, document: Mapping[str, Any], mtu: int) -> None:
    if not mtu:
        return
    at = (*keys, "mtu")
    roce, largest = rdma_devices.roce_mtu(mtu), rdma_devices.WHOLE_ROCE_MTU
    if roce < largest:
        message = f"RoCE makes {roce or 'nothing'} of {mtu}: for its {largest} it needs {rdma_devices.MTU_FOR_WHOLE_ROCE} or more"
        scope.warn(at, message, "write 9000, where the fabric carries it")
    elif mtu > SWITCH_MOST:
        message = f"{mtu} is more than the {SWITCH_MOST} that switches carry, and RoCE uses {largest} of it"
        scope.warn(at, message, "write 9000")
    if mtu < IPV6_LEAST_MTU and addresses.has_ipv6(document):
        scope.error(at, f"{mtu} is too small for IPv6, which needs {IPV6_LEAST_MTU}", f"write {IPV6_LEAST_MTU} or more")


def _device(scope: Scope, keys: Keys, document: Mapping[str, Any], around: Surroundings, by_name: bool) -> None:
    """Check that the configuration chooses a device, by its keys or by the NAD's resource. `by_name` is true if the
    plugin has a key `device` for the device's name."""
    selectors = [n for n in ("device", "hwaddr", "kernelpath", "pciBusID", "deviceID") if member(document, n)]
    capable = member(document, "capabilities", "deviceID")
    if not selectors and not around.resource and not (capable and not around.nad):
        one = '"device": "ens2f0"' if by_name else '"deviceID"'
        if around.nad:
            message = f"no device is named, and the NAD has no annotation {RESOURCE_NAME}"
            fix = f"add the annotation {RESOURCE_NAME}: DOMAIN/RESOURCE, or {one} here"
        else:
            message, fix = "no device is named", f"add {one}"
        scope.error(keys, message, fix)
    taken = [n for n in selectors if n in ("device", "hwaddr", "kernelpath")]
    if around.resource and taken and by_name:
        message = (
            f"{taken[0]} takes precedence over the device that {around.resource} allocates: every pod gets this one"
        )
        scope.warn((*keys, taken[0]), message, f'remove "{taken[0]}", or the annotation')
