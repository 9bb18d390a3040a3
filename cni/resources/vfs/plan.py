"""Plan the steps that give cards the virtual functions of the policies. Pure.

The kernel changes a number of VFs only by setting it to 0 first (Documentation/PCI/pci-iov-howto.rst), which removes
every VF of the card. So a plan does not change the number while a VF of the card is in use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from cni.node.inventory.functions import INFINIBAND, Function
from cni.resources.models import VFIO, VfPolicy

NUMBER, MAC, GUID, DRIVER, REBIND, MTU, UP, MODULE = "numVfs", "mac", "guid", "driver", "rebind", "mtu", "up", "module"
ADDRESSES = (MAC, GUID)
KERNELS_CHOICE = "the kernel's choice"
_LOCAL, _GROUP = 0x02, 0x01  # bits of the first octet of a MAC
_NO_NETDEV = frozenset({VFIO, "uio_pci_generic", "igb_uio"})
_ENTER = "give the container CAP_SYS_ADMIN, or run `railcni vfs apply` on the host"
_MODULES = {VFIO: ("vfio-pci",), "RDMA": ("ib_uverbs", "rdma_ucm")}


@dataclass(frozen=True)
class Card:
    """A physical function, its VFs by number, and `most`, the number of VFs that it can have. `macs` are the VFs'
    administrative MACs by number. `mac` is the card's permanent MAC; "" when administrative MACs are impossible or
    unreadable. On InfiniBand, `macs` and `mac` are GUIDs."""

    function: Function
    most: int
    vfs: Mapping[int, Function] = field(default_factory=dict)
    mac: str = ""
    macs: Mapping[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The PCI address and the netdevs of the card, for messages."""
        netdevs = ", ".join(self.function.netdevs)
        return f"{self.function.id} ({netdevs})" if netdevs else self.function.id


@dataclass(frozen=True)
class NodeCards:
    """The cards of a node. `mtus` has the MTU of each visible netdev by name, `up` the netdevs that are up, `modules`
    the loaded kernel modules. `uses` maps the ID of each VF in use to its user, such as "pod default/a". `unseen` is
    the reason why MACs cannot be read, or ""."""

    cards: Sequence[Card] = ()
    mtus: Mapping[str, int] = field(default_factory=dict)
    up: Set[str] = frozenset()
    uses: Mapping[str, str] = field(default_factory=dict)
    modules: Collection[str] = ()
    unseen: str = ""


@dataclass(frozen=True)
class VfStep:
    """A change of the setting `what` from `now` to `then`. It is a setting of the VF `vf` of `card`, of `card` itself
    if `vf` is -1, or of the kernel if `card` is ""."""

    what: str
    now: str
    then: str
    card: str = ""
    vf: int = -1

    @property
    def place(self) -> str:
        """The object that changes, for messages: the card, "CARD VF 3", or "kernel"."""
        return f"{self.card} VF {self.vf}" if self.vf >= 0 else self.card or "kernel"

    @property
    def sentence(self) -> str:
        """The step as text, such as "0000:3b:00.0: numVfs from 0 to 8"."""
        return f"{self.place}: {self.what} {f'from {self.now} ' if self.now else ''}to {self.then}"


@dataclass(frozen=True)
class VfPlan:
    """The `steps` in order. `refused` has a sentence for each policy without a card, and for each card whose VFs are
    not made or lack a setting."""

    steps: tuple[VfStep, ...] = ()
    refused: tuple[str, ...] = ()


def plan(policies: Sequence[VfPolicy], node: NodeCards) -> VfPlan:
    """Return the plan for `policies`, which are in order of precedence."""
    steps: list[VfStep] = []
    none = [_chosen_by(policy) for policy in policies if not any(_is_of(card, policy) for card in node.cards)]
    refused = [
        f"no card that can have VFs is chosen by {chosen}: name one that `railcni vfs show` has" for chosen in none
    ]
    modules: dict[str, None] = {}
    for card in node.cards:
        own = [policy for policy in policies if _is_of(card, policy)]
        try:
            found = list(_card(card, own, node)) if own else []
        except _Refused as fault:
            refused.append(f"{card.name}: {fault}")
            continue
        steps += found
        makes = any(step.what == NUMBER and step.then != "0" for step in found)
        if makes and card.function.link_type == INFINIBAND and not card.function.netdevs:
            refused.append(f"{card.name}: its VFs get no GUIDs, which are set through its netdev: load ib_ipoib")
        elif makes and node.unseen:
            why = f"{node.unseen}: {_ENTER}"
            refused.append(f"{card.name}: its VFs get no administrative MAC, and those of mlx5 no node GUID: {why}")
        for policy in own:
            if policy.numVfs:
                needed = (VFIO if policy.deviceType == VFIO else "", "RDMA" if policy.isRdma else "")
                modules |= dict.fromkeys(module for key in needed for module in _MODULES.get(key, ()))
    first = [VfStep(MODULE, "not loaded", module) for module in modules if module not in node.modules]
    return VfPlan((*first, *steps), tuple(refused))


class _Refused(Exception):
    """A card cannot be changed. The text has the reason and the remedy."""


def _card(card: Card, policies: Sequence[VfPolicy], node: NodeCards) -> Iterator[VfStep]:
    number, now = policies[0].numVfs, len(card.vfs)
    for other in policies[1:]:
        if other.numVfs != number:
            raise _Refused(f"two policies want {number} and {other.numVfs} VFs: write the same numVfs in both")
    if number > card.most:
        raise _Refused(f"numVfs {number}: it can have {card.most} VFs; more need a setting of the card's firmware")
    managed = any(policy.externallyManaged for policy in policies)
    if managed and now < number:
        raise _Refused(f"it has {now} VFs of {number}, and with externallyManaged others make them")
    made = number != now and not managed
    if made:
        _refuse_used(card.vfs.values(), node, f"the number of VFs changes from {now} to {number}")
    most = max((policy.mtu or 0 for policy in policies), default=0)
    for netdev in card.function.netdevs[:1] if number else ():
        if most > node.mtus.get(netdev, most):
            yield VfStep(MTU, str(node.mtus[netdev]), str(most), card.function.id)
        if netdev not in node.up:
            yield VfStep(UP, "down", "up", card.function.id)
    if made:
        yield VfStep(NUMBER, str(now), str(number), card.function.id)
    for vf in range(number):
        policy = next((p for p in policies if _has(p, card, vf)), None)
        yield from _vf(card, vf, policy, None if made else card.vfs.get(vf), node)


def _vf(card: Card, number: int, policy: VfPolicy | None, now: Function | None, node: NodeCards) -> Iterator[VfStep]:
    """Yield the steps of the VF `number`; `now` is None for a VF that this plan makes."""
    wants_vfio = policy is not None and policy.deviceType == VFIO
    if now is None:
        right = False
    elif policy is None:
        return
    else:
        right = now.driver == VFIO if wants_vfio else bool(now.driver) and now.driver not in _NO_NETDEV
    has_none = not card.macs.get(number, "unseen").strip("0:")
    lacks_mac = card.mac and (now is None or (has_none and not _is_used(now, node)))
    if lacks_mac:
        kind = GUID if card.function.link_type == INFINIBAND else MAC
        yield VfStep(kind, "none", _mac(card.mac, number), card.function.id, number)
    if lacks_mac and right and not wants_vfio:  # a driver reads the MAC and the node GUID when it is bound
        yield VfStep(REBIND, "", KERNELS_CHOICE, card.function.id, number)
    elif not right:
        if now is not None:
            _refuse_used([now], node, f"the driver of VF {number} changes")
        before = now.driver if now else ""
        yield VfStep(DRIVER, before or "none", VFIO if wants_vfio else KERNELS_CHOICE, card.function.id, number)
    if policy is None or wants_vfio or not policy.mtu:
        return
    if now is None or not right or lacks_mac:
        yield VfStep(MTU, "", str(policy.mtu), card.function.id, number)
        return
    for netdev in now.netdevs[:1]:  # none for a VF in a pod: the MTU belongs to the pod
        if node.mtus.get(netdev, policy.mtu) != policy.mtu:
            yield VfStep(MTU, str(node.mtus[netdev]), str(policy.mtu), card.function.id, number)


def _is_used(vf: Function, node: NodeCards) -> bool:
    """Whether the VF is in use. A VF whose netdev is up counts as used."""
    return vf.id in node.uses or not node.up.isdisjoint(vf.netdevs)


def _refuse_used(vfs: Collection[Function], node: NodeCards, what: str) -> None:
    used = [f"VF {vf.index} {vf.id} by {node.uses[vf.id]}" for vf in vfs if node.uses.get(vf.id)]
    if used:
        raise _Refused(f"{what}, and it is in use: {'; '.join(used)}: end this use, and apply again")


def _mac(mac: str, vf: int) -> str:
    """Derive the MAC or GUID of the VF `vf` from `mac`, the card's permanent MAC or GUID. The result is locally
    administered, and the same each time."""
    octets = bytearray(hashlib.sha256(f"{mac} {vf}".encode()).digest()[: len(mac.split(":"))])
    octets[0] = (octets[0] | _LOCAL) & ~_GROUP
    return octets.hex(":")


def _is_of(card: Card, policy: VfPolicy) -> bool:
    selector, function = policy.nicSelector, card.function
    return (
        (not selector.vendor or selector.vendor == function.vendor)
        and (not selector.deviceID or selector.deviceID == function.product)
        and (not selector.pfNames or bool(_names(selector.pfNames) & {n.lower() for n in function.netdevs}))
        and (not selector.rootDevices or function.id in _names(selector.rootDevices))
    )


def _has(policy: VfPolicy, card: Card, vf: int) -> bool:
    """Whether `policy`, which selects `card`, also selects its VF number `vf`."""
    names = {card.function.id, *(netdev.lower() for netdev in card.function.netdevs)}
    spans = [span for name, spans in policy.chosen if name.lower() in names for span in spans or [(0, vf)]]
    return not policy.chosen or any(first <= vf <= last for first, last in spans)


def _names(ranged: Sequence[str]) -> set[str]:
    return {text.partition("#")[0].lower() for text in ranged}


def _chosen_by(policy: VfPolicy) -> str:
    given = policy.nicSelector.model_dump(exclude_defaults=True)
    return ", ".join(f"{key} {', '.join(v) if isinstance(v, list) else v}" for key, v in given.items())
