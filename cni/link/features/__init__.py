"""The features: optional parts of an attachment beside its link, each with a key in the network configuration.

    rail    a routing table for the link, and ARP settings                       routing.py
    rdma    the verbs device of the link's NIC, and GIDs of the addresses        verbs_device.py

The module of a feature is loaded only for an attachment whose configuration or record has the feature. The
protocol `Feature` lists the functions of such a module. The plan of each feature is written, as `extras`, to the record
(the node's file of the attachment) before the first side effect. So a DEL can undo the feature, even if the configuration
has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cni import load
from cni.shared.config import OF_FEATURES, Fault
from cni.shared.spec.errors import CniError, IoFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from cni.link.features import routing, verbs_device
    from cni.shared.config import Key
    from cni.shared.kernel.links import Link
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.log import Log
    from cni.shared.spec.request import Request
    from cni.shared.spec.result import Result

    class Feature(Protocol):
        """The functions of a feature's module. `config` is the result of `read`, `document` the result of `plan`."""

        KEY: Key  # the feature's key in the network configuration
        KEYS: Sequence[Key]  # the keys of the object that may be the value of KEY

        def read(self, value: Any, request: Request, faults: list[Fault]) -> Any:
            """Return the checked configuration, or None if the feature is not wanted. Append a fault to `faults` for
            each wrong value. `value` is that of the feature's key in the network configuration, None when absent."""

        def plan(
            self, config: Any, request: Request, carrier: tuple[str, bool], is_shared: bool, sandbox: Sandbox, log: Log
        ) -> dict[str, Any] | None:
            """Make a plan, which must fit in JSON; None if there is nothing to do. Raises CniError if ADD would fail.

            `carrier` is the result of `LinkPlugin.carrier`: the netdev that carries the link's traffic. `is_shared` is
            true if this netdev stays on the host and attachments share it.
            """

        def before_up(self, document: dict[str, Any], link: Link, sandbox: Sandbox) -> None:
            """Make the changes that must come before the link has addresses and is up. The thread is in the sandbox."""

        def after_up(self, document: dict[str, Any], link: Link, result: Result, sandbox: Sandbox, log: Log) -> bool:
            """Make the changes that need the link with its addresses and routes. May change the ADD's `result`.

            The thread is in the sandbox. A CniError undoes the attachment. Returns True if `document` has changed."""

        def remove(self, document: dict[str, Any], sandbox: Sandbox | None, log: Log) -> None:
            """Undo the feature, even if it was applied only in part. Called before the link is removed, perhaps twice.
            `sandbox` is None when the sandbox is gone. The thread is on the host."""

        def differences(self, document: dict[str, Any], link: Link, expected: Result, sandbox: Sandbox) -> list[str]:
            """A text for each difference between the present state of `link` and the state after the ADD, whose result
            was `expected`. The thread is on the host."""

        def unlike(self, document: dict[str, Any] | None, config: Any) -> list[str]:
            """A text for each difference between `config` and the plan, which is None if no plan was made. No I/O."""

        def status(self, config: Any, is_shared: bool, netdev: Link | None) -> None:
            """Raise NotAvailable or LimitedConnectivity when an ADD could not succeed now. `netdev` is the host's
            netdev that an ADD would use, None when unknown; `is_shared` is as in `plan`."""

    _: tuple[Feature, ...] = (routing, verbs_device)  # mypy compares each with the contract
    Planned = Sequence[tuple[Feature, dict[str, Any]]]  # the features of an attachment, each with its plan

NAMES = OF_FEATURES
_MODULES = {"rail": "cni.link.features.routing", "rdma": "cni.link.features.verbs_device"}
UNASKED = ("rdma",)  # features that may apply without their key


def named(name: str) -> Feature:
    """Load and return the module of the feature `name`."""
    feature: Feature = load(_MODULES[name])
    return feature


def remove(documents: Mapping[str, dict[str, Any]], sandbox: Sandbox | None, log: Log) -> list[CniError]:
    """Undo the features, the last one first. `documents` has their plans by feature name. Returns the errors.
    `sandbox` is None when the sandbox is gone."""
    faults: list[CniError] = []
    for name, document in reversed([*documents.items()]):
        feature = named(name)
        try:
            feature.remove(document, sandbox, log)
        except CniError as fault:
            faults.append(fault)
        except OSError as fault:
            text = f"`{feature.KEY.name}` of the attachment cannot be undone: {fault.strerror}; repeat the DEL"
            faults.append(IoFailure(text))
    return faults


class Asked(dict[str, "Any"]):  # in quotes: the pack has no typing
    """The checked configurations, by feature name, of the features that an attachment may have."""

    def plan(self, *given: Any) -> Planned:
        """Plan the features, but change nothing. Returns (module, plan) for each feature that has a plan.

        `given` are the arguments of `Feature.plan` after `config`. Raises the CniError of the first feature that cannot be
        planned."""
        found = [(named(name), named(name).plan(config, *given)) for name, config in self.items()]
        return [(feature, document) for feature, document in found if document is not None]

    def unlike(self, documents: Mapping[str, dict[str, Any]]) -> list[str]:
        """A text for each difference of the configurations from the plans `documents`, by feature name."""
        return [text for name, config in self.items() for text in named(name).unlike(documents.get(name), config)]

    def status(self, is_shared: bool, netdev: Link | None) -> None:
        """Raise a CniError when an ADD could not set up a feature now. The arguments are those of `Feature.status`."""
        for name, config in self.items():
            named(name).status(config, is_shared, netdev)


def read(request: Request, faults: list[Fault]) -> Asked:
    """The checked configurations of the features that may apply: those whose key is present, and those in UNASKED.
    Appends a fault to `faults` for each wrong value."""
    asked = Asked()
    for name in NAMES:
        value = request.member(name)
        if value is None and name not in UNASKED:
            continue
        config = named(name).read(value, request, faults)
        if config is not None:
            asked[name] = config
    return asked
