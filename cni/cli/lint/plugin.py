"""What is wrong with one plugin of a network: the tables of keys and the checks are those of the plugin itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni import extras, plugins, rdma
from cni.cli.lint import addresses, known
from cni.cli.lint.scope import Scope, shown
from cni.cli.lint.table import proposal, told, unknown_keys
from cni.cli.networks import RESOURCE_NAME
from cni.cli.source import Keys
from cni.config import Fault, fill
from cni.rail import Rail
from cni.spec.request import Request, member
from cni.spec.versions import NEWEST, SUPPORTED

ROCE_HEADERS = 96  # bytes of GRH, UDP, BTH and the rest that the kernel counts (include/rdma/ib_addr.h, iboe_get_mtu)
ROCE_MOST = 4096
_ROCE_MTUS = (256, 512, 1024, 2048, ROCE_MOST)
SWITCH_MOST = 9216  # the jumbo frames that Ethernet switches commonly carry, in bytes
IPV6_LEAST = 1280  # RFC 8200, section 5


@dataclass(frozen=True)
class Surroundings:
    """What a plugin stands in. `versions` are those of the network; `resource` the NAD's resource, of a `nad`."""

    name: str = ""
    versions: Sequence[str] = ()
    nad: bool = False
    resource: str = ""
    flat: addresses.Files = field(default_factory=addresses.Assumed)

    @property
    def version(self) -> str:
        usable = [v for v in SUPPORTED if v in self.versions]
        return usable[-1] if usable else NEWEST


def examine(scope: Scope, keys: Keys, document: Mapping[str, Any], around: Surroundings) -> None:
    """Note what is wrong with the plugin `document`, which stands at `keys`."""
    kind = member(document, "type")
    own = known.meant(kind) if isinstance(kind, str) else ""
    request = Request({"CNI_COMMAND": "ADD"}, b"", _as_called(document, around), {})
    if own in known.OWN_LINKS:
        module = plugins.named(own)
        table = (*module.KEYS, *(extras.named(name).KEY for name in extras.NAMES))
        nested = {name: extras.named(name).KEYS for name in extras.NAMES}
        unknown_keys(scope, keys, document, table, f"the plugin {own}", own)
        for name, members in nested.items():
            value = member(document, name)
            if isinstance(value, dict):
                unknown_keys(scope, (*keys, name), value, members, name)
        faults: list[Fault] = []
        config = module.read(request, faults)
        asked = extras.read(request, faults)
        told(scope, keys, faults, table, nested)
        _same_index(scope, keys, document, asked.get("rail"))
        if not faults:
            _mtu(scope, keys, document, getattr(config, "mtu", 0))
        if own == "macvlan" and not member(document, "master"):
            message = "no master is named: the link goes on that of the default route, which is seldom the RDMA netdev"
            scope.warn((*keys, "master"), message, 'add "master": "ens2f0", the name of the RDMA netdev')
        if own in ("host-device", "sriov"):
            _device(scope, keys, document, around, own)
    elif own == known.OWN_CHAINED:
        unknown_keys(scope, keys, document, rdma.KEYS, f"the plugin {own}", own)
        met: list[Fault] = []
        fill(rdma.Config(), rdma.KEYS, document, met)
        told(scope, keys, met, rdma.KEYS, {})
    else:
        _foreign_mtu(scope, keys, document)
    addresses.examine(scope, keys, document, request, around.flat)


def _as_called(document: Mapping[str, Any], around: Surroundings) -> dict[str, Any]:
    """The configuration as the runtime hands it to the plugin; with a device when the NAD has a resource."""
    given = {"deviceID": "0000:00:00.0", "pciBusID": "0000:00:00.0"} if around.resource else {}
    version = around.version
    return {
        **{k: v for k, v in given.items() if k not in document},
        **document,
        "name": around.name,
        "cniVersion": version,
    }


def _same_index(scope: Scope, keys: Keys, document: Mapping[str, Any], rail: Rail | None) -> None:
    """Rails of one index a pod are counted by our IPAM plugin alone."""
    block = member(document, "ipam")
    kind = member(block, "type") if isinstance(block, dict) else None
    if rail and rail.is_same_index and known.meant(str(kind)) != known.OWN_IPAM:
        message = f'"{rail.addressing}" needs the IPAM plugin {known.OWN_IPAM}'
        scope.error((*keys, "rail", "addressing"), message, f'write "{known.OWN_IPAM}" as ipam.type, or "plain" here')


def _mtu(scope: Scope, keys: Keys, document: Mapping[str, Any], mtu: int) -> None:
    if not mtu:
        return
    at = (*keys, "mtu")
    roce = max((m for m in _ROCE_MTUS if m + ROCE_HEADERS <= mtu), default=0)
    if roce < ROCE_MOST:
        least = ROCE_MOST + ROCE_HEADERS
        scope.warn(
            at,
            f"RoCE makes {roce or 'nothing'} of {mtu}: for its {ROCE_MOST} it needs {least} or more",
            "write 9000, where the fabric carries it",
        )
    elif mtu > SWITCH_MOST:
        scope.warn(
            at,
            f"{mtu} is more than the {SWITCH_MOST} that switches carry, and RoCE uses {ROCE_MOST} of it",
            "write 9000",
        )
    if mtu < IPV6_LEAST and addresses.has_ipv6(document):
        scope.error(at, f"{mtu} is too small for IPv6, which needs {IPV6_LEAST}", f"write {IPV6_LEAST} or more")


def _foreign_mtu(scope: Scope, keys: Keys, document: Mapping[str, Any]) -> None:
    mtu = member(document, "mtu")
    if mtu is not None and (isinstance(mtu, bool) or not isinstance(mtu, int)):
        scope.error((*keys, "mtu"), f"{shown(mtu)}: want an integer", proposal(_int, mtu))


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("want an integer")
    return int(value)


def _device(scope: Scope, keys: Keys, document: Mapping[str, Any], around: Surroundings, kind: str) -> None:
    """Whether the plugin learns which device to take: from its own keys, or from the resource of a NAD."""
    selectors = [n for n in ("device", "hwaddr", "kernelpath", "pciBusID", "deviceID") if member(document, n)]
    capabilities = member(document, "capabilities")
    capable = isinstance(capabilities, dict) and member(capabilities, "deviceID")
    if not selectors and not around.resource and not (capable and not around.nad):
        one = '"device": "ens2f0"' if kind == "host-device" else '"deviceID"'
        if around.nad:
            message = f"no device is named, and the NAD has no annotation {RESOURCE_NAME}"
            fix = f"add the annotation {RESOURCE_NAME}: DOMAIN/RESOURCE, or {one} here"
        else:
            message, fix = "no device is named", f"add {one}"
        scope.error(keys, message, fix)
    taken = [n for n in selectors if n in ("device", "hwaddr", "kernelpath")]
    if around.resource and taken and kind == "host-device":
        message = f"{taken[0]} wins over the device that {around.resource} allocates: every pod gets this one"
        scope.warn((*keys, taken[0]), message, f'remove "{taken[0]}", or the annotation')
