"""The contract of a feature: the functions of its module, and the class Place, for which it plans.

A module fits `Feature` by its functions alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from cni.shared.config import Fault, Key
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.log import Log
    from cni.shared.spec.request import Request
    from cni.shared.spec.result import Result

    class Feature(Protocol):
        """A feature of an attachment. Config is the feature's own class; its document, which the record keeps, is JSON."""

        KEY: Key  # its entry in the network configuration
        KEYS: Sequence[Key]  # when that is an object: its keys

        def read(self, value: Any, request: Request, faults: list[Fault]) -> Any:
            """The checked configuration, or None when the feature is not wanted; all its faults go to `faults`.

            `value` is that of the key, None when it is absent.
            """

        def plan(self, config: Any, request: Request, place: Place) -> dict[str, Any] | None:
            """Read, change nothing, and decide: returns the document for the record, None for no change; CniError."""

        def before_up(self, document: dict[str, Any], link: Link, sandbox: Sandbox) -> None:
            """The changes that come before the link gets addresses and is set up. The thread is in the sandbox."""

        def after_up(self, document: dict[str, Any], link: Link, result: Result, sandbox: Sandbox, log: Log) -> bool:
            """The changes that need the link with its addresses and routes; `result` is ADD's answer. The thread is in the
            sandbox. A CniError undoes the attachment. True when `document` was changed: it is then written again."""

        def remove(self, document: dict[str, Any], sandbox: Sandbox | None, log: Log) -> None:
            """Undo the feature before the link is removed, also one that failed half-way; it may be repeated. `sandbox` is
            None when the sandbox is gone. The thread is on the host."""

        def differences(self, document: dict[str, Any], link: Link, expected: Result, sandbox: Sandbox) -> list[str]:
            """The differences from ADD's state. `expected` has the link's addresses and the routes. The thread is on the host."""

        def unlike(self, document: dict[str, Any] | None, config: Any) -> list[str]:
            """The differences of `config` from the plan `document` (pure), which is None when no feature was planned."""

        def status(self, config: Any, is_shared: bool, netdev: Link | None) -> None:
            """Raise NotAvailable or LimitedConnectivity when an ADD could not be served now.

            `netdev` is the one of the host that ADDs would use, None when it is not known; `is_shared` as in Place.
            """


class Place:
    """The place of the attachment, for the plan of a feature.

    `netdev` is the name of the netdev which carries the link (macvlan's master; host-device's
    device; "" for none), `is_shared` whether that netdev stays on the host for other attachments too, `in_sandbox` whether it is in the sandbox, `mtu` the planned MTU of the
    link in bytes (0: none). `host` is a route socket on the host, `sandbox` the sandbox.
    """

    def __init__(
        self, netdev: str, is_shared: bool, in_sandbox: bool, mtu: int, host: Rtnl, sandbox: Sandbox, log: Log
    ) -> None:
        self.netdev = netdev
        self.is_shared = is_shared
        self.in_sandbox = in_sandbox
        self.mtu = mtu
        self.host = host
        self.sandbox = sandbox
        self.log = log
