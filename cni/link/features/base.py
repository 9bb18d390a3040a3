"""The contract of a feature: the functions of its module (`Feature`), and the input of its plan (`Place`).

A module fits `Feature` if it has these functions; there is no class to derive from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from cni.link.features import Place
    from cni.shared.config import Fault, Key
    from cni.shared.kernel.links import Link
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.log import Log
    from cni.shared.spec.request import Request
    from cni.shared.spec.result import Result

    class Feature(Protocol):
        """The module of a feature. `config` is what `read` returns, `document` what `plan` returns (JSON)."""

        KEY: Key  # the feature's key in the network configuration
        KEYS: Sequence[Key]  # the keys of the object that may be the value of KEY

        def read(self, value: Any, request: Request, faults: list[Fault]) -> Any:
            """The checked configuration, None when the feature is not wanted; append wrong values to `faults`.

            `value` is the value of the feature's key in the network configuration, None when absent.
            """

        def plan(self, config: Any, request: Request, place: Place) -> dict[str, Any] | None:
            """Plan, change nothing. Returns the plan, None if there is nothing to do. Raises CniError if ADD would fail."""

        def before_up(self, document: dict[str, Any], link: Link, sandbox: Sandbox) -> None:
            """Make the changes that must come before the link has addresses and is up. The thread is in the sandbox."""

        def after_up(self, document: dict[str, Any], link: Link, result: Result, sandbox: Sandbox, log: Log) -> bool:
            """Make the changes that need the link with its addresses and routes. May change `result`, that of the ADD.

            The thread is in the sandbox. A CniError undoes the attachment. Returns True if `document` has changed."""

        def remove(self, document: dict[str, Any], sandbox: Sandbox | None, log: Log) -> None:
            """Undo the feature, even a partly applied one, before the link is removed; a repetition is harmless.
            `sandbox` is None when the sandbox is gone. The thread is on the host."""

        def differences(self, document: dict[str, Any], link: Link, expected: Result, sandbox: Sandbox) -> list[str]:
            """A text for each difference of `link` from the state after ADD. `expected` is the result of ADD. The
            thread is on the host."""

        def unlike(self, document: dict[str, Any] | None, config: Any) -> list[str]:
            """A text for each difference between `config` and the plan `document` (None: no plan). Does no I/O."""

        def status(self, config: Any, is_shared: bool, netdev: Link | None) -> None:
            """Raise NotAvailable or LimitedConnectivity when an ADD could not succeed now.

            `netdev` is the host's netdev that an ADD would use, None when unknown; `is_shared` is as in Place.
            """
