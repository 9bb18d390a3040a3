"""Match the functions of a node with selectors, and explain for each selector why it matches no function. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cni.node.inventory.devices import VerbsDevice
from cni.node.inventory.functions import Function
from cni.resources.models import RANGED, Exclusive, ExclusiveSelectors, MadeSelectors, Selectors, Shared, spans

NOTHING = "no NIC or function is chosen"
_NO_VERBS = "has no verbs device (`railcni doctor` names a verbs driver that is not loaded)"
_NOT_ON_PCI = "is not on PCI: a resource of configList can have it"
_MOST = 8  # the most values that a message names
Values = Callable[[Function], Collection[str]]
_VALUES: dict[str, Values] = {  # by selector: the values of a function that are compared
    "vendors": lambda function: [function.vendor],
    "drivers": lambda function: [function.driver],
    "linkTypes": lambda function: [function.link_type],
    "deviceIDs": lambda function: [function.product],
    "devices": lambda function: [function.product],
    "ifNames": lambda function: function.netdevs,
    "pciAddresses": lambda function: [function.id],
    "pfNames": lambda function: function.physical_netdevs,
    "rootDevices": lambda function: [function.physical],
}


@dataclass(frozen=True)
class Host:
    """The devices of the node. `devices` are the verbs devices by name. `busy` maps each netdev that carries the node's
    own traffic to a text with the reason. `paths` are the existing device nodes, such as "/dev/infiniband/uverbs0".
    `is_exclusive`: RDMA is in the exclusive netns mode, where a namespace sees only the verbs devices that were moved
    into it. `below` maps a netdev on top of others, such as a bond, to the links below it."""

    functions: Sequence[Function] = ()
    devices: Mapping[str, VerbsDevice] = field(default_factory=dict)
    busy: Mapping[str, str] = field(default_factory=dict)
    is_exclusive: bool = False
    below: Mapping[str, Sequence[str]] = field(default_factory=dict)
    paths: Collection[str] = ()


def matches(function: Function, selectors: Selectors) -> bool:
    """Whether the function matches every selector that is set."""
    for key, values in _VALUES.items():
        wanted = getattr(selectors, key, None)
        if wanted and key in RANGED and not _is_of(wanted, values(function), function.index):
            return False
        if wanted and key not in RANGED and set(wanted).isdisjoint(values(function)):
            return False
    return function.has_rdma or not getattr(selectors, "isRdma", False)


def _is_of(ranged: Sequence[str], names: Collection[str], index: int) -> bool:
    """Whether `ranged`, such as ["NAME#0-3,7"], selects the VF `index` of the PF with `names`. NAME alone: all VFs."""
    folded = {name.lower() for name in names}
    for item in ranged:
        name, parts = spans(item)
        if name.lower() in folded:
            return not parts or any(first <= index <= last for first, last in parts)
    return False


def reason(resource: Shared | Exclusive, host: Host, taken: Collection[str]) -> str:
    """The reason, for the log, why `resource` has no devices. `taken` are the functions of earlier resources."""
    if not host.functions:
        return f"{NOTHING}: the node has no network function and no verbs device"
    if isinstance(resource, Shared):
        with_verbs = [function for function in host.functions if function.verbs]
        found = [_selector(resource.selectors, with_verbs, host, taken, _NO_VERBS)]
    else:
        on_pci = [function for function in host.functions if function.is_on_pci]
        found = [_selector(one, on_pci, host, taken, _NOT_ON_PCI) for one in resource.selectors]
    return f"{NOTHING}: {'; '.join(dict.fromkeys(found))}"


def _selector(
    selectors: Selectors, candidates: Sequence[Function], host: Host, taken: Collection[str], unfit: str
) -> str:
    """The reason why `selectors` match none of `candidates`; `unfit` says why the other functions are no candidates."""
    others = [function for function in host.functions if function not in candidates]
    given = {key: wanted for key in _VALUES if (wanted := getattr(selectors, key, None))}
    faults = []
    for key, wanted in given.items():
        values = _VALUES[key]
        there = sorted({value for one in candidates for value in values(one) if value})
        if {spans(text)[0].lower() for text in wanted}.isdisjoint(value.lower() for value in there):
            faults.append(f"{key} {', '.join(wanted)}: {_instead(wanted, there, others, host, values, unfit)}")
        elif numbers := _missing_numbers(selectors, wanted, candidates, values):
            faults.append(f"{key} {', '.join(wanted)}: {numbers}")
    if faults:
        return "; ".join(faults)
    if isinstance(selectors, ExclusiveSelectors):
        if not candidates:
            return f"{', '.join(function.id for function in others[:_MOST])} {_NOT_ON_PCI}"
        if selectors.isRdma and not any(function.has_rdma for function in candidates):
            return "isRdma: no function has a verbs device"
        if held := sorted(taken):
            return f"earlier resources have {', '.join(held[:_MOST])}"
    return f"no function matches all of {', '.join(given) or 'the selectors'}, or its VFs are in use instead of it"


def _instead(
    wanted: Sequence[str], there: Sequence[str], others: Sequence[Function], host: Host, values: Values, unfit: str
) -> str:
    """A hint for a selector if none of its values `wanted` exists: the ports, if a value is a bond; or the functions in
    `others` that have a wanted value, and why they are `unfit`; or the existing values `there`, only the similar ones
    if there are any."""
    names = [spans(text)[0] for text in wanted]
    for name in names:
        if ports := host.below.get(name):
            return f"{name} is a link on top of {', '.join(ports)}: name these"
    if meant := [
        ", ".join(one.netdevs) or one.id for one in others if not set(names).isdisjoint((*values(one), *one.netdevs))
    ]:
        return f"{', '.join(meant[:_MOST])} {unfit}"
    near = [value for value in there if any(value.startswith(name) or name.startswith(value) for name in names)]
    shown = near or there
    more = f" and {len(shown) - _MOST} more" if len(shown) > _MOST else ""
    verb = "is" if len(shown) == 1 else "are"
    return f"there {verb} {', '.join(shown[:_MOST])}{more}" if shown else "the node has none"


def _missing_numbers(
    selectors: Selectors, wanted: Sequence[str], candidates: Sequence[Function], values: Values
) -> str:
    """Return a text such as "NAME has the VFs 0 to 7" for the first of `wanted` ("NAME#8-9") that selects no existing
    VF; "" if there is none. `values(function)` returns the names of a function that NAME can match.
    """
    for text in wanted:
        name, parts = spans(text)
        indexes = [f.index for f in candidates if f.index >= 0 and name in values(f)]
        if parts and not any(first <= index <= last for first, last in parts for index in indexes):
            if indexes:
                return f"{name} has the VFs 0 to {max(indexes)}"
            itself = f"; without the range {name} itself is offered, such as a VF in a virtual machine"
            return f"{name} has no VF{'' if isinstance(selectors, MadeSelectors) else itself}"
    return ""
