"""The result of an ADD, and its form in every version of the spec.

In memory a result has the form of 1.1.0. `document` converts a result to any version, `parse` reads any version. Members
that an older version does not have are left out:

    1.1.0          interfaces (mtu, socketPath, pciID), ips, routes (mtu, advmss, priority, table, scope), dns
    1.0.0          without mtu, socketPath and pciID; routes keep dst and gw
    0.3.0 - 0.4.0  as 1.0.0, and each of `ips` has its IP `version` ("4" or "6")
    0.1.0 - 0.2.0  no interfaces; the first IPv4 and the first IPv6 address as `ip4` and `ip6`, with their routes

Sources: SPEC.md section 5 of each version; the conversions of pkg/types/{020,040,100} in containernetworking/cni.
"""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_pton
from typing import Any

from cni.shared.spec.errors import DecodingFailure, IncompatibleVersion
from cni.shared.spec.request import NEWEST, SUPPORTED, at_least

IPV6_LEAST_MTU = 1280  # bytes: RFC 8200, section 5
_SINCE_1_1 = ("mtu", "socketPath", "pciID")  # members of an interface


class Interface:
    """A link that an ADD made or moved. `mtu` is in bytes, 0 if absent; `sandbox` is "" for a link on the host."""

    def __init__(
        self, name: str, mac: str = "", mtu: int = 0, sandbox: str = "", pci_id: str = "", socket_path: str = ""
    ) -> None:
        self.name = name
        self.mac = mac
        self.mtu = mtu
        self.sandbox = sandbox
        self.pci_id = pci_id
        self.socket_path = socket_path


class IPConfig:
    """An address "a.b.c.d/len" or "x::y/len", its gateway or "", and the index of its interface, None if absent."""

    def __init__(self, address: str, gateway: str = "", interface: int | None = None) -> None:
        self.address = address
        self.gateway = gateway
        self.interface = interface

    @property
    def family(self) -> int:
        """The IP version, 4 or 6."""
        return 6 if ":" in self.address else 4


MOST_SCOPE = 254  # of a route; 255 is RT_SCOPE_NOWHERE


class Route:
    """A route to `dst`, a CIDR, by `gw`; "" for the address's gateway. Other attributes: as in spec 1.1.0, None if absent."""

    def __init__(
        self,
        dst: str,
        gw: str = "",
        mtu: int | None = None,
        advmss: int | None = None,
        priority: int | None = None,
        table: int | None = None,
        scope: int | None = None,
    ) -> None:
        self.dst = dst
        self.gw = gw
        self.mtu = mtu
        self.advmss = advmss
        self.priority = priority
        self.table = table
        self.scope = scope

    @property
    def family(self) -> int:
        """The IP version, 4 or 6."""
        return 6 if ":" in self.dst else 4


class Result:
    """The result of an ADD. `dns` is the unchanged object of the spec; {} when there is none."""

    def __init__(
        self,
        interfaces: list[Interface] | None = None,
        ips: list[IPConfig] | None = None,
        routes: list[Route] | None = None,
        dns: dict[str, Any] | None = None,
    ) -> None:
        self.interfaces = interfaces or []
        self.ips = ips or []
        self.routes = routes or []
        self.dns = dns or {}

    def document(self, version: str) -> dict[str, Any]:
        """The JSON object of this result in `version`. Raises IncompatibleVersion when `version` cannot express it."""
        if not at_least(version, "0.3.0"):
            return self._document_by_family(version)
        reply: dict[str, Any] = {"cniVersion": version}
        newest = at_least(version, "1.1.0")
        if self.interfaces:
            reply["interfaces"] = [_interface(i, newest) for i in self.interfaces]
        if self.ips:
            reply["ips"] = [_address(a, with_family=not at_least(version, "1.0.0")) for a in self.ips]
        if self.routes:
            reply["routes"] = [_route(r, newest) for r in self.routes]
        reply["dns"] = self.dns
        return reply

    def _document_by_family(self, version: str) -> dict[str, Any]:
        reply: dict[str, Any] = {"cniVersion": version}
        for address in self.ips:
            key = f"ip{address.family}"
            if key in reply:
                continue
            entry: dict[str, Any] = {"ip": address.address}
            if address.gateway:
                entry["gateway"] = address.gateway
            routes = [_route(r, newest=False) for r in self.routes if r.family == address.family]
            if routes:
                entry["routes"] = routes
            reply[key] = entry
        if len(reply) == 1:
            raise IncompatibleVersion(
                f"cniVersion {version} cannot describe an attachment without addresses: use cniVersion 0.3.0 or newer, or give it an ipam block"
            )
        reply["dns"] = self.dns
        return reply


def parse(document: Any, what: str = "prevResult", has_interfaces: bool = True) -> Result:
    """The result in `document`, of any version. Raises DecodingFailure for another document, named `what` in the error.

    Without `has_interfaces`, as for the result of an IPAM plugin, interfaces are ignored (SPEC.md, section 5).
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
    numbers = {key: _number(r, key) for key in ("mtu", "advmss", "priority", "table", "scope")}
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
    """The string `entry[key]`, or the default when it is absent. Raises TypeError for other values."""
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
    """The interface index of `address`; None if absent, or negative as of some plugins. Raises TypeError from `count` on."""
    index = _number(address, "interface")
    if index is None or index < 0:
        return None
    if index >= count:
        raise TypeError(f"interface {index} of address {address.get('address')!r:.60} is not in its interfaces")
    return index


def _interface(i: Interface, newest: bool) -> dict[str, Any]:
    own = {
        "name": i.name,
        "mac": i.mac,
        "mtu": i.mtu,
        "sandbox": i.sandbox,
        "socketPath": i.socket_path,
        "pciID": i.pci_id,
    }
    return {key: value for key, value in own.items() if value and (newest or key not in _SINCE_1_1)}


def _address(a: IPConfig, with_family: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if with_family:
        entry["version"] = str(a.family)
    if a.interface is not None:
        entry["interface"] = a.interface
    entry["address"] = a.address
    if a.gateway:
        entry["gateway"] = a.gateway
    return entry


def _route(r: Route, newest: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"dst": r.dst}
    if r.gw:
        entry["gw"] = r.gw
    if newest:
        for key in ("mtu", "advmss", "priority", "table", "scope"):
            value = getattr(r, key)
            if value is not None:
                entry[key] = value
    return entry
