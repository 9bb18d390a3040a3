"""The IPAM part of an attachment record: which store holds the attachment's leases, and which addresses they are.

It is written before the claim, so that DEL and GC find what a killed ADD may have claimed; and it names the addresses,
so that a store whose file was lost can begin anew with what is in use. Members, besides those that every record has:

    store      which store it is: {"kind": "file", "path": DIRECTORY}, or what ipam.stores.describe says of another one
    netns      CNI_NETNS of the ADD
    node       the node's name
    pod        [namespace, name, uid], "" for what is not known
    sequence   when the addresses were claimed, in ns since 1970
    scope      the reservation scope of all of them, null for none
    pools, addresses   lists of the same length
    machine    which machine the node is (cni.kernel.node.machine_id); absent for none
    cooldown   for how many seconds the addresses are given to no other pod when they are freed; absent for none
    pending    true when a DEL came that could not release them
"""

from __future__ import annotations

from ipam.ranges import format_address, parse_address
from ipam.stores.base import COOLDOWN, Lease, Owner, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.spec.request import Attachment

PART = "ipam"


def document(store: dict[str, Any], wants: Sequence[Want], owner: Owner, cooldown: int = 0) -> dict[str, Any]:
    """The record of a claim in the store that `store` describes."""
    found: dict[str, Any] = {
        "store": store,
        "netns": owner.netns,
        "node": owner.node,
        "pod": list(owner.pod),
        "sequence": owner.sequence,
        "scope": wants[0].scope if wants else None,
        "pools": [want.pool for want in wants],
        "addresses": [format_address(want.family, want.value) for want in wants],
        "pending": False,
    }
    if owner.machine:
        found["machine"] = owner.machine
    if cooldown:
        found["cooldown"] = cooldown
    return found


def cooldown(record: dict[str, Any] | None) -> int:
    """The cooldown that a record tells of; 0 where it tells of none."""
    found = record.get("cooldown") if record else None
    return found if isinstance(found, int) and 0 < found <= COOLDOWN else 0


def leases(attachment: Attachment, record: dict[str, Any]) -> list[Lease]:
    """The leases that a record tells of; ValueError when its members are not what `document` writes."""
    try:
        namespace, name, uid = (_text(part) for part in record["pod"])
        node, boot_id, netns = (_text(record[key]) for key in ("node", "bootID", "netns"))
        sequence = record["sequence"]
        if not isinstance(sequence, int) or not 0 <= sequence < 1 << 63 or not isinstance(record["store"], dict):
            raise TypeError("sequence or store")
        machine = _text(record.get("machine", ""))
        owner = Owner(attachment, (namespace, name, uid), node, boot_id, netns, sequence, machine)
        scope = record["scope"] if record["scope"] is None else _text(record["scope"])
        places = zip(record["pools"], record["addresses"], strict=True)
        return [Lease(Want(_text(pool), *parse_address(_text(text)), scope), owner) for pool, text in places]
    except (KeyError, TypeError) as fault:
        raise ValueError(f"{fault} is missing or of a wrong type") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(repr(value)[:60])
    return value
