"""The plan of a move, as the record keeps it; and the search for the device by this plan."""

from __future__ import annotations

from cni.plugins.host_device import devices
from cni.shared.kernel import node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment

PART = "link"  # of the attachment records
RETURNED = "returned"
REFUSED = "refused"  # an ADD could not restore the whole state of the device: the next ADD takes the device as it is


class Plan:
    """The move. `device` is the state to restore ({} for a function that a userspace driver holds).

    `returned`: a later ADD has restored the device because the sandbox was gone; the attachment has lost the device.
    """

    __slots__ = ("device", "mtu", "name", "pci", "restores_state", "returned")

    def __init__(self, document: dict[str, Any]) -> None:
        self.name: str = document["name"]
        self.mtu: int = document["mtu"]
        self.pci: str = document["pci"]
        self.device: dict[str, Any] = document["device"]
        self.restores_state: bool = document["restoresState"]
        self.returned: bool = document.get(RETURNED, False)

    def document(self) -> dict[str, Any]:
        """The plan as the record keeps it."""
        return {
            "name": self.name,
            "mtu": self.mtu,
            "pci": self.pci,
            "device": self.device,
            "restoresState": self.restores_state,
            RETURNED: self.returned,
        }


def recorded(own: Attachment | None, records: Records) -> Iterator[tuple[Attachment, dict[str, Any]]]:
    """The attachments other than `own`, with their records, that have a device, or have not fully given it back."""
    boot = node.boot_id()
    for attachment, _, record in records.all(PART):
        link = record["link"]
        if link.get("device") is None or link.get(RETURNED) or attachment == own or record["bootID"] != boot:
            continue
        yield attachment, record


def present(planned: Plan, inside: Rtnl) -> Link | None:
    """The device in the sandbox, under any name; None when the sandbox does not have it, or another attachment does."""
    return among(planned, inside, away=True) if planned.device and not planned.returned else None


def recognises(planned: Plan, inside: Rtnl) -> bool:
    """Whether the device is among the links of `inside`."""
    return present(planned, inside) is not None


def among(planned: Plan, rtnl: Rtnl, away: bool = False) -> Link | None:
    """The device among the links of `rtnl`, those of a sandbox when it is `away`. It has nearly always kept its index."""
    former = planned.device
    same = rtnl.link(index=former["index"])
    found = devices.known_again(former, [same], marked=True, away=away) if same else None
    return found or devices.known_again(former, rtnl.links(), marked=True, away=away)
