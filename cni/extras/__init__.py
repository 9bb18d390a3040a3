"""What an attachment may have beside its link: one module for each, named as its key in the configuration.

    rail    a routing table of its own, and ARP settings
    rdma    the verbs device of its netdev, and the GIDs of its addresses

A module is loaded only for an attachment that asks for it, or that has it in its record; `Extra` in cni/extras/base.py
says what is in it. What an extra has planned stands in the attachment's record, as `extras`, before the first side
effect, so that a DEL undoes it whatever has become of the configuration.
"""

from __future__ import annotations

from cni.spec.errors import CniError, IoFailure
from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cni.config import Fault
    from cni.extras.base import Extra
    from cni.kernel.links import Link, Rtnl
    from cni.log import Log
    from cni.sandbox import Sandbox
    from cni.spec.request import Request
    from cni.spec.result import Result

NAMES = ("rail", "rdma")
UNASKED = ("rdma",)  # what may be had without its key


def named(name: str) -> Extra:
    """The extra `name`; only its module is loaded."""
    if name == "rail":
        from cni.extras import rail

        return rail
    from cni.extras import rdma

    return rdma


class Place:
    """Where an attachment is to be made, for an extra's plan: `plugin` is the link plugin's name, `netdev` that of the
    netdev which carries the link (macvlan's master; host-device's device; "" for none), `in_sandbox` whether this one
    is there and not on the host, `mtu` the link's to be (0: none); `host` is a route socket there, `there` the sandbox."""

    __slots__ = ("host", "in_sandbox", "log", "mtu", "netdev", "plugin", "there")

    def __init__(
        self, plugin: str, netdev: str, in_sandbox: bool, mtu: int, host: Rtnl, there: Sandbox, log: Log
    ) -> None:
        self.plugin = plugin
        self.netdev = netdev
        self.in_sandbox = in_sandbox
        self.mtu = mtu
        self.host = host
        self.there = there
        self.log = log


class Extras:
    """The extras of one attachment, each with what it has planned, in the order in which they are done."""

    __slots__ = ("documents",)

    def __init__(self, documents: Mapping[str, dict[str, Any]]) -> None:
        self.documents = documents

    def before_up(self, link: Link, there: Sandbox) -> None:
        """In the sandbox, before the link has addresses and is up."""
        for name, document in self.documents.items():
            named(name).before_up(document, link, there)

    def after_up(self, link: Link, result: Result, there: Sandbox, log: Log) -> bool:
        """In the sandbox, when the link is up and has its addresses and routes; `result` may be added to.

        True when what was planned has changed by it, so that the record has to be written again.
        """
        changed = False
        for name, document in self.documents.items():
            changed = named(name).after_up(document, link, result, there, log) or changed
        return changed

    def remove(self, there: Sandbox | None, log: Log) -> list[CniError]:
        """Undo all, the last first, also when the sandbox is gone (`there` is None); why some could not be undone."""
        faults: list[CniError] = []
        for name, document in reversed(list(self.documents.items())):
            try:
                named(name).remove(document, there, log)
            except CniError as fault:
                faults.append(fault)
            except OSError as fault:
                faults.append(IoFailure(f"`{name}` of the attachment cannot be undone: {fault.strerror}; DEL again"))
        return faults

    def differences(self, link: Link, expected: Result, there: Sandbox) -> list[str]:
        """What of them is not as ADD left it."""
        found = []
        for name, document in self.documents.items():
            found += named(name).differences(document, link, expected, there)
        return found


def unlike(documents: Mapping[str, dict[str, Any]], asked: Mapping[str, Any]) -> list[str]:
    """What the configurations `asked` want otherwise than was planned (`documents`)."""
    return [text for name, config in asked.items() for text in named(name).unlike(documents.get(name), config)]


def read(request: Request, faults: list[Fault]) -> dict[str, Any]:
    """The checked configuration of each extra that `request` asks for; its faults go to `faults`."""
    asked = {}
    for name in NAMES:
        value = member(request.config, name)
        if value is None and name not in UNASKED:
            continue
        config = named(name).read(value, request, faults)
        if config is not None:
            asked[name] = config
    return asked


def plan(asked: Mapping[str, Any], request: Request, place: Place) -> Extras | None:
    """What will be done, None for nothing; the CniError of the first extra that cannot be had. Nothing is changed yet."""
    documents = {}
    for name, config in asked.items():
        document = named(name).plan(config, request, place)
        if document is not None:
            documents[name] = document
    return Extras(documents) if documents else None


def status(asked: Mapping[str, Any], plugin: str, netdev: Link | None) -> None:
    """Raise what an extra has against an ADD now; `netdev` is the one on the host that ADDs would use, if it is known."""
    for name, config in asked.items():
        named(name).status(config, plugin, netdev)
