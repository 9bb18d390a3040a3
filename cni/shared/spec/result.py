"""The result of an ADD, and its form in every version of the spec.

In memory a result has the form of 1.1.0. `document` converts a result to any version, `parsing.parse` reads any version.
Members that an older version does not have are left out:

    1.1.0          interfaces (mtu, socketPath, pciID), ips, routes (mtu, advmss, priority, table, scope), dns
    1.0.0          without mtu, socketPath and pciID; routes have only dst and gw
    0.3.0 - 0.4.0  as 1.0.0, and each of `ips` has its IP `version` ("4" or "6")
    0.1.0 - 0.2.0  no interfaces; the first IPv4 and the first IPv6 address as `ip4` and `ip6`, with their routes

Sources: SPEC.md section 5 of each version; the conversions of pkg/types/{020,040,100} in containernetworking/cni.
"""

from __future__ import annotations

from typing import Any

from cni.shared.spec.errors import IncompatibleVersion
from cni.shared.spec.request import at_least

IPV6_LEAST_MTU = 1280  # bytes: RFC 8200, section 5


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
    """An address "a.b.c.d/len" or "x::y/len", its gateway or "", and the index of its interface in the result, or None."""

    def __init__(self, address: str, gateway: str = "", interface: int | None = None) -> None:
        self.address = address
        self.gateway = gateway
        self.interface = interface

    @property
    def family(self) -> int:
        """The IP version, 4 or 6."""
        return 6 if ":" in self.address else 4


MOST_SCOPE = 254  # of a route; 255 is RT_SCOPE_NOWHERE
NUMBERS_OF_ROUTE = ("mtu", "advmss", "priority", "table", "scope")  # members since 1.1.0


class Route:
    """A route to the CIDR `dst` through `gw`; if `gw` is "", through the gateway in `ips`. See spec 1.1.0."""

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
    """The result of an ADD. `dns` is the object `dns` as received, or {}."""

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
            routes = [_route(r, newest=False) for r in self.routes if r.family == address.family]
            entry = {"ip": address.address, "gateway": address.gateway or None, "routes": routes or None}
            reply.setdefault(f"ip{address.family}", _given(entry))
        if len(reply) == 1:
            raise IncompatibleVersion(
                f"cniVersion {version} cannot describe an attachment without addresses: use cniVersion 0.3.0 or newer, or give it an ipam block"
            )
        reply["dns"] = self.dns
        return reply


def _interface(i: Interface, newest: bool) -> dict[str, Any]:
    own: dict[str, Any] = {"name": i.name, "mac": i.mac, "mtu": i.mtu if newest else 0, "sandbox": i.sandbox}
    if newest:
        own |= {"socketPath": i.socket_path, "pciID": i.pci_id}
    return {key: value for key, value in own.items() if value}


def _address(a: IPConfig, with_family: bool) -> dict[str, Any]:
    version = str(a.family) if with_family else None
    return _given({"version": version, "interface": a.interface, "address": a.address, "gateway": a.gateway or None})


def _route(r: Route, newest: bool) -> dict[str, Any]:
    numbers = {key: getattr(r, key) for key in NUMBERS_OF_ROUTE} if newest else {}
    return _given({"dst": r.dst, "gw": r.gw or None, **numbers})


def _given(members: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}
