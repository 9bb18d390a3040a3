"""What a link plugin is to the verbs: the functions that its module has.

A module fits `LinkPlugin` by its functions alone; nothing imports this file when a plugin runs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from cni.attachment import Book
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

        def document(self) -> dict[str, Any]:
            """The plan as the record keeps it; `load` reads it back."""

    class LinkPlugin(Protocol):
        """The steps that differ from plugin to plugin. Config, Facts and Plan are the plugin's own classes."""

        NAME: str

        def read(self, request: Request) -> Any:
            """The checked configuration: `dns` and `dad` are attributes of it. InvalidConfig has all faults."""

        def survey(self, config: Any, request: Request, host: Rtnl, box: Rtnl, book: Book) -> Any:
            """What is there now, on the host and in the sandbox: the only reading before the plan."""

        def plan(self, config: Any, request: Request, facts: Any) -> Any:
            """Decide (pure): the plan, or the CniError that says why there is none."""

        def load(self, document: dict[str, Any]) -> Any:
            """The plan in a record."""

        def adopt(self, request: Request, host: Rtnl, box: Rtnl) -> Any:
            """The plan of an attachment without a record (Go's plugin made it), as far as it can be told; or None."""

        def apply(self, planned: Any, host: Rtnl, box: Rtnl, sandbox: Namespace) -> Link | None:
            """Bring the link into the sandbox, named and down; None when there is none to bring (DPDK)."""

        def refused_up(self, planned: Any, fault: KernelError) -> str:
            """Why the kernel did not set the link up, in words."""

        def remove(self, planned: Any, host: Rtnl, box: Rtnl | None, log: Log) -> None:
            """Undo `apply`, however much of it was done, any number of times. `box` is None when the sandbox is gone."""

        def differences(self, planned: Any, link: Link) -> list[str]:
            """What of the link is not as planned; the addresses, routes, MAC and MTU are compared elsewhere."""

        def pci_id(self, planned: Any) -> str:
            """The PCI address for the result; "" for none."""

        def check_addresses(self, planned: Any, ips: list[IPConfig]) -> None:
            """Refuse addresses that this link cannot have."""

        def status(self, config: Any, host: Rtnl, log: Log) -> None:
            """Raise NotAvailable or LimitedConnectivity when an ADD could not be served now."""
