"""The contract of a link plugin: the functions of its module, which `cni.verbs` calls.

A module fits `LinkPlugin` by its functions alone. After the contract comes what the plugins share.
"""

from __future__ import annotations

from cni.shared.config import Key, boolean, dns_settings, ipam_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from cni.shared.config import Fault
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.netlink import KernelError
    from cni.shared.kernel.netns import Namespace
    from cni.shared.log import Log
    from cni.shared.records import HeldLock, Records
    from cni.shared.spec.request import Attachment, Request

    class Plan(Protocol):
        """The decision of an ADD, complete before its first side effect."""

        @property
        def name(self) -> str:
            """The link's name in the sandbox."""

        @property
        def mtu(self) -> int:
            """The MTU in bytes; 0 when there is no link, and none is configured."""

        @property
        def pci(self) -> str:
            """The PCI address for the result; "" for none."""

        def document(self) -> dict[str, Any]:
            """The plan as the record keeps it; `load` reads it back."""

    class LinkPlugin(Protocol):
        """The steps that differ from plugin to plugin. Config, Facts and Plan are the plugin's own classes.

        `host` and `inside` are route sockets: on the host, and in the sandbox.
        """

        NAME: str
        SHARES_NETDEV: bool  # its netdev stays on the host, where other attachments have it too
        ONLY_OURS: (
            str  # why the plugin of another suite cannot end its attachments even without a sandbox; "" when it can
        )

        @property
        def KEYS(self) -> Sequence[Key]:
            """Its configuration: docs/reference.md, `railcni nad lint` and the JSON Schema are made from this table."""

        def direct_log(self, request: Request, log: Log) -> None:
            """Give `log` the file and level that the network has for it."""

        def read(self, request: Request, faults: list[Fault]) -> Any:
            """The checked configuration: `dns` and `dad` are attributes of it. All its faults go to `faults`."""

        def claim(self, config: Any, request: Request, host: Rtnl, records: Records, named: Named) -> DeviceClaim:
            """Make the device of the configuration free to take, or name the attachment that has it.

            This changes the host and the records: a device whose sandbox ended without a DEL is given back. A plugin that
            takes no device claims nothing. `named` finds the plugin that made another attachment.
            """

        def survey(
            self, config: Any, request: Request, host: Rtnl, inside: Rtnl, claimed: DeviceClaim, log: Log
        ) -> Any:
            """Read what the plan depends on, on the host and in the sandbox; nothing is changed."""

        def plan(self, config: Any, request: Request, facts: Any) -> Any:
            """Decide (pure): the plan, or the CniError that says why there is none."""

        def load(self, document: dict[str, Any]) -> Any:
            """The plan in a record."""

        def adopt(self, request: Request, host: Rtnl, inside: Rtnl | None) -> Any:
            """The plan of an attachment without a record (Go's plugin made it), as far as its link shows; None without one.

            `inside` is None when the sandbox is gone.
            """

        def apply(self, planned: Any, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link | None:
            """Bring the link into the sandbox, named and down; None for a device without a link (DPDK)."""

        def refused_up(self, planned: Any, fault: KernelError) -> str:
            """Why the kernel did not set the link up, in words."""

        def remove(self, planned: Any, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
            """Undo `apply`, also one that failed half-way; it may be repeated. `inside` is None when the sandbox is gone.

            Lingers while the link or device is in neither place, and only the kernel or a person can end that.
            """

        def recognises(self, planned: Any, inside: Rtnl) -> bool:
            """Whether the plan's link is certainly in `inside`: some kernels cannot tell a namespace from a later one."""

        def lingers(self, planned: Any, host: Rtnl) -> bool:
            """Whether the plan's link is in use in a sandbox that is not found, as far as the host's namespace shows."""

        def present(self, planned: Any, inside: Rtnl) -> Link | None:
            """The link in the sandbox, under any name; None when the sandbox does not have it."""

        def without_link(self, planned: Any) -> tuple[str, int] | None:
            """The MAC and MTU of a device that serves the pod without a link in the sandbox (DPDK), "" and 0 if they are
            not known; None for any other plan."""

        def differences(self, planned: Any, config: Any, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
            """The differences of the link, or of the device without one, from the plan and from `config`.

            `config` is the checked configuration of this call; a key that it does not have is not compared. Addresses,
            routes, MAC and MTU are compared in `cni.verbs.check`.
            """

        def carrier(self, planned: Any) -> tuple[str, bool]:
            """The name of the netdev that carries the link's traffic, "" for none; and whether it is in the sandbox."""

        def status(self, config: Any, host: Rtnl, log: Log) -> Link | None:
            """Raise NotAvailable or LimitedConnectivity when an ADD could not be served now.

            Otherwise returns the netdev of the host that an ADD would use; None when only the ADD decides, or it is away.
            """

    Named = Callable[[str], LinkPlugin]


KEYS_OF_EACH = (  # the last keys of each link plugin
    Key("dad", boolean, False, "wait for duplicate address detection of IPv6 addresses"),
    Key("ipam", ipam_block, {}, "the IPAM plugin's configuration; absent or {}: no addresses"),
    Key("dns", dns_settings, {}, "DNS settings for the result; default: the IPAM plugin's"),
)


class LinkConfig:
    """The values of KEYS_OF_EACH."""

    dad: bool
    ipam: dict[str, Any]
    dns: dict[str, Any]


class RecordedPlan:
    """A plan whose attributes are the members of its document in the record."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.__dict__.update(document)

    def document(self) -> dict[str, Any]:
        """The plan as the record keeps it."""
        return dict(self.__dict__)


class DeviceClaim:
    """The claim of a device by an ADD before it plans: a `with` block that lasts until the record is written.

    `holder` has the device: an attachment, or the path of a sandbox that Go's plugin attached; None when it is free.
    `links` are those of the host, as far as the plugin has read them. `lock` keeps other ADDs from claiming the device.
    """

    def __init__(self, lock: HeldLock | None = None) -> None:
        self.holder: Attachment | str | None = None
        self.links: Sequence[Link] = ()
        self._lock = lock

    def __enter__(self) -> DeviceClaim:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock:
            self._lock.release()


def keep_log(request: Request, log: Log) -> None:
    """The `direct_log` of a plugin without keys for its log."""


_UNKNOWN = (None, "")


def differs(key: str, now: Any, was: Any, configured: Any = None) -> list[str]:
    """At most one sentence about `key`.

    None or "" is not compared: as `now` the kernel does not show the key, as `was` ADD left the key to the kernel, as
    `configured` the configuration does not have the key.
    """
    if now in _UNKNOWN:
        return []
    words = "" if was in (*_UNKNOWN, now) else f", was {was}"
    if configured not in (*_UNKNOWN, now) and (not words or configured != was):
        words += f", configured is {configured}"
    return [f"{key} is {now}{words}"] if words else []
