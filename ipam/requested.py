"""The addresses that the caller requests for one attachment: CNI_ARGS IP, runtimeConfig.ips, args.cni.ips."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from cni.shared.config import MOST_MEMBERS, Fault, asks_for_same_index, attempt
from cni.shared.spec.request import member
from ipam.ranges import Range, format_address, is_link_local, parse_address, parse_cidr, unassignable

if TYPE_CHECKING:
    from ipam.config import IpamConfig, Requested  # it imports this module


def read(config: IpamConfig, faults: list[Fault]) -> tuple[list[Requested], list[Range]]:
    """The addresses that the caller requests, and a range for each of them that lies outside of the network's ranges.

    An address that two keys name counts once, since Multus sends both IP and `ips`. In an ADD, the network must also
    permit the address. Other verbs do not check this, since the configuration may have changed after the ADD.
    """
    text = config.request.args.get("IP", "")
    asked = [("CNI_ARGS IP", part.strip()) for part in text.split(",") if text]
    for key in ("runtimeConfig.ips", "args.cni.ips"):
        asked += _strings(config.request.config, key, faults)
    if len(asked) > MOST_MEMBERS:
        faults.append(Fault("the requested addresses", len(asked), f"want {MOST_MEMBERS} at most"))
        return [], []
    static = {parse_cidr(a.address)[:2] for a in config.addresses}
    requested: dict[tuple[int, int], int | None] = {}
    outside: dict[tuple[int, int], Range] = {}
    for key, part in asked:
        found = attempt(_address_or_cidr, part, key, faults)
        if found is None or found[:2] in static:
            continue
        family, value, prefix = found
        address = family, value
        if wrong := _never_given(config, found, address in set(config.kept_back) - static, requested):
            faults.append(Fault(key, part, wrong))
        elif requested.get(address) is None:
            requested[address] = prefix
            if prefix is not None and not config.range_of(*address) and _may_be_outside(config):
                outside[address] = Range(family, value, prefix, value, value)
    return [(family, value, prefix) for (family, value), prefix in requested.items()], list(outside.values())


def _never_given(config: IpamConfig, asked: Requested, is_gateway: bool, others: Collection[tuple[int, int]]) -> str:
    """The reason, with the remedy, why `asked` cannot be given in addition to the requested `others`; "" if it can."""
    family, value, prefix = asked
    rng, is_add = config.range_of(family, value), config.request.command == "ADD"
    subnet = rng or (Range(family, value, prefix) if prefix is not None else None)
    if kind := unassignable(family, value):
        return f"is {kind}: want an address of a subnet"
    if is_add and not (rng or _may_be_outside(config)):
        way_out = "" if _has_fixed_ranges(config) else ", or ipam.allow_outside_ranges in the network"
        return f"is in no range of this network: want one that is{way_out}"
    if subnet is None:
        return "is in no range of this network: want one that is, or address/length"
    if is_add and rng is None and is_link_local(family, value):
        return "is link-local, and in no range of this network: want another address"
    if is_gateway:
        return "is a gateway, which is never given: want another address"
    if subnet.top - subnet.network > 1 and value in (subnet.network, subnet.top):
        return f"is the first or last address of {subnet}, which is never given: want another"
    if is_add and rng and not any(r.family == family and r.usable(value) for r in config.ranges):
        if rng.first <= value <= rng.last:
            return f"is excluded from {rng}: want another address, or take it out of `exclude`"
        first, last = (format_address(family, end) for end in (rng.first, rng.last))
        return f"is outside of {first}-{last}, which range {rng} gives (range_start, range_end): want one of these"
    return _excess((family, value), others, config) if is_add else ""


def _may_be_outside(config: IpamConfig) -> bool:
    """Whether a pod may request an address outside of the network's ranges."""
    return config.allow_outside_ranges and not _has_fixed_ranges(config)


def _has_fixed_ranges(config: IpamConfig) -> bool:
    """Whether node slices or a rail group rule out addresses outside of the network's ranges."""
    return bool(config.node_slice_size) or asks_for_same_index(config.request)


def _excess(new: tuple[int, int], requested: Collection[tuple[int, int]], config: IpamConfig) -> str:
    """The text of the fault if `new` together with `requested` are more addresses than a pod may request; else ""."""
    holding = [r for r in config.ranges if r.family == new[0] and r.contains(new[1])]
    where, most = f"in {holding[0]}" if holding else "outside of the ranges", config.requested_addresses
    others = [v for f, v in requested if f == new[0]]
    if holding:
        most *= len(holding)
        count = sum(any(r.contains(v) for r in holding) for v in others)
    else:
        count = sum(config.range_of(new[0], v) is None for v in others)
    if new in requested or count < most:
        return ""
    return f"is one too many, for a pod may request {most} {where}: want fewer, or a larger ipam.requested_addresses"


def _strings(document: Any, key: str, faults: list[Fault]) -> list[tuple[str, str]]:
    """(name for faults, text) of each string in the list at `key` of `document`. A name is "args.cni.ips[0]"."""
    document = member(document, *key.split("."))
    if document is None:
        return []
    if not isinstance(document, list) or not all(isinstance(item, str) for item in document):
        faults.append(Fault(key, document, "want a list of addresses as strings"))
        return []
    return [(f"{key}[{i}]", item.strip()) for i, item in enumerate(document)]


def _address_or_cidr(text: str) -> Requested:
    try:
        return parse_cidr(text) if "/" in text else (*parse_address(text), None)
    except ValueError:
        raise ValueError("want an address, with or without /length, such as 192.168.2.7/24") from None
