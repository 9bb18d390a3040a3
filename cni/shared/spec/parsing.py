"""Read a CNI result, prevResult or the answer of another plugin, in any version of the spec (see result.py)."""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_pton
from typing import Any

from cni.shared.spec.errors import DecodingFailure
from cni.shared.spec.request import NEWEST, SUPPORTED, at_least
from cni.shared.spec.result import NUMBERS_OF_ROUTE, Interface, IPConfig, Result, Route


def parse(document: Any, what: str = "prevResult", has_interfaces: bool = True) -> Result:
    """Convert `document`, a CNI result of any version. Raises DecodingFailure if it is no result.

    `what` is the name of `document` in the error. If `has_interfaces` is false, as for the result of an IPAM plugin,
    interfaces are ignored (SPEC.md, section 5).
    """
    if not isinstance(document, dict):
        raise DecodingFailure(f"{what} is not a JSON object")
    version = document.get("cniVersion") or ("0.2.0" if "ip4" in document or "ip6" in document else NEWEST)
    if version not in SUPPORTED:
        raise DecodingFailure(f'{what} has cniVersion "{version!s:.40}", which is not one of {", ".join(SUPPORTED)}')
    try:
        dns = document.get("dns") or {}
        if not isinstance(document.get("dns", {}), dict | None):
            raise TypeError("dns")
        if not at_least(version, "0.3.0"):
            return _parse_by_family(document, dns)
        interfaces = [_parse_interface(i) for i in (_objects(document, "interfaces") if has_interfaces else [])]
        ips = [IPConfig(_cidr(a, "address"), _address_or_none(a, "gateway")) for a in _objects(document, "ips")]
        for ip, a in zip(ips, _objects(document, "ips") if has_interfaces else [], strict=False):
            ip.interface = _index(a, len(interfaces))
        return Result(interfaces, ips, [_parse_route(r) for r in _objects(document, "routes")], dns)
    except TypeError as fault:
        raise DecodingFailure(f"{what} is not a CNI result of version {version}: {fault}") from None


def _parse_by_family(document: dict[str, Any], dns: dict[str, Any]) -> Result:
    ips: list[IPConfig] = []
    routes: list[Route] = []
    for key in ("ip4", "ip6"):
        entry = document.get(key)
        if entry:
            if not isinstance(entry, dict):
                raise TypeError(f"{key} is not an object")
            ips.append(IPConfig(_cidr(entry, "ip"), _address_or_none(entry, "gateway")))
            routes += [_parse_route(r) for r in _objects(entry, "routes")]
    return Result([], ips, routes, dns)


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TypeError(f"{key} is not a list of objects")
    return found


def _parse_interface(i: Any) -> Interface:
    mac, sandbox, pci_id, socket_path = (_text(i, key, "") for key in ("mac", "sandbox", "pciID", "socketPath"))
    return Interface(_text(i, "name"), mac, _number(i, "mtu") or 0, sandbox, pci_id, socket_path)


def _parse_route(r: Any) -> Route:
    numbers = {key: _number(r, key) for key in NUMBERS_OF_ROUTE}
    return Route(_cidr(r, "dst"), _address_or_none(r, "gw"), **numbers)


def _cidr(entry: Any, key: str) -> str:
    """The string `entry[key]`. Raises TypeError unless it is "address/length"."""
    text = _text(entry, key)
    address, _, length = text.partition("/")
    family = _family(address)
    if not family or not (length.isascii() and length.isdigit() and len(length) <= 3) or int(length) > family:
        raise TypeError(f"{key} {text[:60]!r} is not address/length")
    return text


def _address_or_none(entry: Any, key: str) -> str:
    text = _text(entry, key, "")
    if text and not _family(text):
        raise TypeError(f"{key} {text[:60]!r} is not an address")
    return text


def _family(address: str) -> int:
    """The number of bits of an IP address, 32 or 128; 0 when `address` is no IP address."""
    try:
        return 8 * len(inet_pton(AF_INET6 if ":" in address else AF_INET, address))
    except (OSError, ValueError):  # ValueError: a zero byte
        return 0


def _text(entry: Any, key: str, default: str | None = None) -> str:
    """The string `entry[key]`; `default` when absent. Raises TypeError for other types, or for "" without `default`."""
    value = entry.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not (value or default is not None):
        raise TypeError(f"{key} {value!r:.60} is not a string")
    return value


def _number(entry: Any, key: str) -> int | None:
    value = entry.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{key} {value!r:.60} is not an integer")
    return value


def _index(address: Any, count: int) -> int | None:
    """The member `interface` of `address`; None if absent or negative. Raises TypeError if it is `count` or more."""
    index = _number(address, "interface")
    if index is None or index < 0:
        return None
    if index >= count:
        raise TypeError(f"interface {index} of address {address.get('address')!r:.60} is not in its interfaces")
    return index
