"""What an extra is to the verbs: the functions that its module has.

A module fits `Extra` by its functions alone; nothing imports this file when a plugin runs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from cni.config import Fault, Key
    from cni.extras import Place
    from cni.kernel.links import Link
    from cni.log import Log
    from cni.sandbox import Sandbox
    from cni.spec.request import Request
    from cni.spec.result import Result

    class Extra(Protocol):
        """One aspect of an attachment beside its link. Config is the extra's own class; its document is JSON."""

        KEY: Key  # its entry in the network configuration
        KEYS: Sequence[Key]  # when that is an object: its keys

        def read(self, value: Any, request: Request, faults: list[Fault]) -> Any:
            """The checked configuration, or None when the extra is not wanted; all that is wrong goes to `faults`.

            `value` is that of the key, None when it is absent.
            """

        def plan(self, config: Any, request: Request, place: Place) -> dict[str, Any] | None:
            """Look, change nothing, and decide: the document for the record, None for nothing to do, or a CniError."""

        def before_up(self, document: dict[str, Any], link: Link, there: Sandbox) -> None:
            """What must be so before the link gets addresses and is set up. The thread is in the sandbox."""

        def after_up(self, document: dict[str, Any], link: Link, result: Result, there: Sandbox, log: Log) -> bool:
            """What needs the link with its addresses and routes; `result` is what ADD will answer. The thread is in the
            sandbox. A CniError undoes the attachment. True when `document` was changed: it is then written again."""

        def remove(self, document: dict[str, Any], there: Sandbox | None, log: Log) -> None:
            """Undo it, however much was done, any number of times, before the link goes; `there` is None when the
            sandbox is gone. The thread is on the host."""

        def differences(self, document: dict[str, Any], link: Link, expected: Result, there: Sandbox) -> list[str]:
            """What is not as ADD left it. `expected` has the link's addresses and the routes. The thread is on the host."""

        def unlike(self, document: dict[str, Any] | None, config: Any) -> list[str]:
            """What `config` wants otherwise than was planned (pure); `document` is None when nothing was."""

        def status(self, config: Any, plugin: str, netdev: Link | None) -> None:
            """`netdev` is the one of the host that ADDs of the link plugin would use, None when it is not known. Raise NotAvailable or LimitedConnectivity when an ADD could not be served now."""
