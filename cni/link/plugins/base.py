"""The contract of a link plugin: the functions that `cni.link.verbs` calls. `LinkPlugin` has the functions for new
links, `MadeLinks` those for links that exist. `MadeLinks` may be a second module, which most ADDs do not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from cni.link.plugins.common import Facts, RecordedPlan
    from cni.shared.config import Fault, Key
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.netlink import KernelError
    from cni.shared.kernel.netns import Namespace
    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Request

    class LinkPlugin(Protocol):
        """The steps that differ from plugin to plugin. Each plugin has its own types of `config`, `facts` and
        `planned`. `host` is an rtnetlink socket on the host, `inside` one in the sandbox."""

        NAME: str
        SHARES_NETDEV: bool  # the netdev stays on the host, and attachments share it
        ONLY_OURS: str  # the damage if another suite's plugin ends an attachment whose sandbox is gone; "" for none

        @property
        def KEYS(self) -> Sequence[Key]:
            """The configuration keys: docs/reference.md, `railcni nad lint` and the JSON Schema are made from this table."""

        def direct_log(self, request: Request, log: Log) -> None:
            """Set the file and the level of `log` to those that the network configures."""

        def read(self, request: Request, faults: list[Fault]) -> Any:
            """Check the configuration, and append all its faults to `faults`. Returns an object that has the attributes
            `dns`, `dad`, `mtu` and, if the plugin has this key, `mac`."""

        def survey(
            self, config: Any, request: Request, host: Rtnl, inside: Rtnl, records: Records, named: Named
        ) -> Facts:
            """Claim the device of the configuration, and read the state that the plan depends on.

            If another attachment has the device, `holder` of the result names this attachment. If the sandbox of the
            other attachment ended without a DEL, the device is restored on the host instead, and the record of the
            other attachment notes this. `named` is `plugins.of_made`, which loads the plugin of the other attachment.
            """

        def plan(self, config: Any, request: Request, facts: Any) -> RecordedPlan:
            """Make the plan, without I/O. Raises CniError, with the reason, when the attachment cannot be made."""

        def apply(self, planned: Any, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link | None:
            """Bring the link into the sandbox, name it, and leave it down. Returns the link; None for a DPDK device."""

        def refused_up(self, planned: Any, fault: KernelError) -> str:
            """The error message for `fault`, the kernel's refusal to set the link up."""

        def without_link(self, planned: Any) -> tuple[str, int] | None:
            """The MAC ("": unknown) and MTU (0: unknown) of a device without a link (DPDK); None if there is a link."""

        def carrier(self, planned: Any) -> tuple[str, bool]:
            """The name of the netdev that carries the link's traffic ("": none), and whether it is in the sandbox."""

        def status(self, config: Any, host: Rtnl, log: Log) -> Link | None:
            """The netdev of the host that an ADD would use now; None when it is not on the host or not yet known.
            Raises NotAvailable or LimitedConnectivity when an ADD could not succeed."""

    class MadeLinks(Protocol):
        """The functions by which later calls handle the link that an ADD has made: load its plan from the record; find,
        compare and remove the link. `host` and `inside` are as in LinkPlugin."""

        def load(self, document: dict[str, Any]) -> Any:
            """Load the plan from `document`, which `RecordedPlan.document` made for a record."""

        def adopt(self, request: Request, host: Rtnl, inside: Rtnl | None) -> Any:
            """The plan of an attachment that the Go plugin of this name made, read from the link or from files of the
            Go plugin. None without such a link or file. `inside` is None when the sandbox is gone."""

        def remove(self, planned: Any, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
            """Undo `apply`, even if it failed half-way. Can be repeated. `inside` is None when the sandbox is gone.
            Raises Lingers while the link or device is in another namespace, from which railcni cannot remove it."""

        def recognises(self, planned: Any, inside: Rtnl) -> bool:
            """Whether `inside` certainly has the plan's link, and is not a later namespace with the same inode."""

        def lingers(self, planned: Any, host: Rtnl) -> bool:
            """Whether the host shows that the plan's link is still in use in a sandbox that cannot be found."""

        def present(self, planned: Any, inside: Rtnl) -> Link | None:
            """The link in the sandbox, under any name; None when the sandbox does not have it."""

        def differences(self, planned: Any, config: Any, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
            """A text for each difference of the link, or of a device without a link, from the plan and from `config`.

            `config` is the checked configuration of this call; `cni.link.verbs.check.check` says which absent keys are
            compared. That module itself compares addresses, routes, MAC, and a configured MTU (`mtuIsAsked`).
            """

    Named = Callable[[str], MadeLinks]
