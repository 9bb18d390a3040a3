"""What a link plugin is to the verbs: the functions that its module has.

A module fits `LinkPlugin` by its functions alone; nothing imports this file when a plugin runs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from cni.attachment import Book
    from cni.config import Fault, Key
    from cni.kernel.links import Link, Rtnl
    from cni.kernel.netlink import KernelError
    from cni.kernel.netns import Namespace
    from cni.log import Log
    from cni.spec.request import Request
    from cni.spec.result import IPConfig

    class Plan(Protocol):
        """What an ADD will do, complete before its first side effect."""

        @property
        def name(self) -> str:
            """The link's name in the sandbox."""

        @property
        def mtu(self) -> int:
            """The link's MTU in bytes; 0 when there is no link."""

        def document(self) -> dict[str, Any]:
            """The plan as the record keeps it; `load` reads it back."""

    class LinkPlugin(Protocol):
        """The steps that differ from plugin to plugin. Config, Facts and Plan are the plugin's own classes."""

        NAME: str

        @property
        def KEYS(self) -> Sequence[Key]:
            """Its configuration: the README, `railcni nad lint` and the JSON Schema go by this table."""

        def read(self, request: Request, faults: list[Fault]) -> Any:
            """The checked configuration: `dns` and `dad` are attributes of it. All its faults go to `faults`."""

        def survey(self, config: Any, request: Request, host: Rtnl, box: Rtnl, book: Book) -> Any:
            """What is there now, on the host and in the sandbox: the only reading before the plan."""

        def plan(self, config: Any, request: Request, facts: Any) -> Any:
            """Decide (pure): the plan, or the CniError that says why there is none."""

        def load(self, document: dict[str, Any]) -> Any:
            """The plan in a record."""

        def adopt(self, request: Request, host: Rtnl, box: Rtnl | None) -> Any:
            """The plan of an attachment without a record (Go's plugin made it), as far as it can be told; or None.

            `box` is None when the sandbox is gone.
            """

        def apply(self, planned: Any, host: Rtnl, box: Rtnl, sandbox: Namespace) -> Link | None:
            """Bring the link into the sandbox, named and down; None when there is none to bring (DPDK)."""

        def refused_up(self, planned: Any, fault: KernelError) -> str:
            """Why the kernel did not set the link up, in words."""

        def remove(self, planned: Any, host: Rtnl, box: Rtnl | None, log: Log) -> None:
            """Undo `apply`, however much of it was done, any number of times. `box` is None when the sandbox is gone.

            Lingers while the link or device is elsewhere, and the kernel or a person has to bring its end.
            """

        def recognises(self, planned: Any, box: Rtnl) -> bool:
            """Whether what `apply` brings is in `box` beyond doubt, for kernels that do not tell one namespace from a later one."""

        def lingers(self, planned: Any, host: Rtnl) -> bool:
            """Whether what `apply` has brought is in use in a sandbox that is not found, as far as the host's namespace shows."""

        def unmoved(self, planned: Any) -> tuple[str, int] | None:
            """None, or of a device that serves the pod without a link in the sandbox (DPDK) its MAC and MTU, "" and 0
            for those that are not known."""

        def differences(self, planned: Any, link: Link | None, host: Rtnl) -> list[str]:
            """What of the link, or the device without one, is not as planned; the addresses, routes, MAC and MTU are compared elsewhere."""

        def carrier(self, planned: Any) -> tuple[str, bool]:
            """The name of the netdev that carries the link's traffic, "" for none; and whether it is in the sandbox."""

        def pci_id(self, planned: Any) -> str:
            """The PCI address for the result; "" for none."""

        def check_addresses(self, planned: Any, ips: list[IPConfig]) -> None:
            """Refuse addresses that this link cannot have."""

        def status(self, config: Any, host: Rtnl, log: Log) -> Link | None:
            """Raise NotAvailable or LimitedConnectivity when an ADD could not be served now.

            Else the netdev of the host that an ADD would use; None when it is not known before, or away.
            """
