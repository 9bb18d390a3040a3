"""The features: optional parts of an attachment beside its link, each with a key in the network configuration.

    rail    a routing table for the link, and ARP settings                       routing.py
    rdma    the verbs device of the link's NIC, and GIDs of the addresses        verbs_device.py

The module of a feature is loaded only for an attachment whose configuration or record has the feature. `Feature` in
base.py lists the functions of a module. The plan of each feature is written, as `extras`, to the record (the node's
file of the attachment) before the first side effect. So a DEL can undo the feature, even if the configuration has
changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cni import load
from cni.shared.config import OF_FEATURES, Fault
from cni.shared.spec.errors import CniError, IoFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cni.link.features import routing, verbs_device
    from cni.link.features.base import Feature
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.log import Log
    from cni.shared.spec.request import Request

    _: tuple[Feature, ...] = (routing, verbs_device)  # mypy compares each with the contract
    Planned = Sequence[tuple[Feature, dict[str, Any]]]  # the features of an attachment, each with its plan

NAMES = OF_FEATURES
_MODULES = {"rail": "cni.link.features.routing", "rdma": "cni.link.features.verbs_device"}
UNASKED = ("rdma",)  # features that may apply without their key


def named(name: str) -> Feature:
    """Load and return the module of the feature `name`."""
    feature: Feature = load(_MODULES[name])
    return feature


class Place:
    """The netdev and the sandbox of an attachment, for the plan of a feature.

    `netdev` is the name of the netdev that carries the link: macvlan's master, host-device's device, "" for none.
    `is_shared`: the netdev stays on the host, and attachments share it. `in_sandbox`: the netdev is in the sandbox.
    `mtu` is the link's planned MTU in bytes (0: none). `host` is an rtnetlink socket on the host.
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


def of(documents: Mapping[str, dict[str, Any]]) -> Planned:
    """Each feature with its plan, in the order of application. `documents` has the plans by feature name."""
    return [(named(name), document) for name, document in documents.items()]


def remove(planned: Planned, sandbox: Sandbox | None, log: Log) -> list[CniError]:
    """Undo the features, the last first, and return the errors. `sandbox` is None when the sandbox is gone."""
    faults: list[CniError] = []
    for feature, document in reversed(planned):
        try:
            feature.remove(document, sandbox, log)
        except CniError as fault:
            faults.append(fault)
        except OSError as fault:
            text = f"`{feature.KEY.name}` of the attachment cannot be undone: {fault.strerror}; repeat the DEL"
            faults.append(IoFailure(text))
    return faults


def unlike(documents: Mapping[str, dict[str, Any]], asked: Mapping[str, Any]) -> list[str]:
    """A text for each difference between the configurations `asked` and the plans `documents`; both by feature name."""
    return [text for name, config in asked.items() for text in named(name).unlike(documents.get(name), config)]


def read(request: Request, faults: list[Fault]) -> dict[str, Any]:
    """The checked configurations by feature name. Without its key, only a feature in UNASKED is read. Adds to `faults`."""
    asked = {}
    for name in NAMES:
        value = request.member(name)
        if value is None and name not in UNASKED:
            continue
        config = named(name).read(value, request, faults)
        if config is not None:
            asked[name] = config
    return asked


def plan(asked: Mapping[str, Any], request: Request, place: Place) -> Planned:
    """Plan the features `asked`; change nothing. Returns each that has a plan, with the plan. Raises the first CniError."""
    found = [(named(name), named(name).plan(config, request, place)) for name, config in asked.items()]
    return [(feature, document) for feature, document in found if document is not None]


def status(asked: Mapping[str, Any], is_shared: bool, netdev: Link | None) -> None:
    """Raise a CniError when an ADD could not set up a feature now. `is_shared` and `netdev`: see `Feature.status`."""
    for name, config in asked.items():
        named(name).status(config, is_shared, netdev)
