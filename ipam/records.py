"""The IPAM part of an attachment record: the store that has the attachment's leases, and their addresses.

The part is written before the claim, so that DEL and GC find the leases that a killed ADD may have claimed. It has the
addresses, so that a lost lease file can be restored with the addresses in use. Members, in addition to those of every
record:

    store      {"kind": "file", "path": DIRECTORY}, or the reference to another store by ipam.stores.ref_of
    netns      CNI_NETNS of the ADD
    node       the node's name
    pod        [namespace, name, uid]; "" for an unknown part
    sequence   the time of the claim, in ns since 1970
    scope      the reservation scope of all addresses, null for none
    pools, addresses   lists of the same length: the pool and the text of each address
    machine    the node's machine ID (cni.shared.kernel.node.machine_id); absent if there is none
    cooldown   the seconds for which the freed addresses are given to no other pod; absent if there are none
    pending    true when a DEL could not release the addresses
    shared     [pool, address] of each static address that another attachment of the network leases; absent for none
    reason     the error of the last failed release; absent before the first failure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipam.leases import COOLDOWN, Lease, Owner, Want, owner_from_json, want_from_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.spec.request import Attachment

PART = "ipam"


def document(store: dict[str, Any], wants: Sequence[Want], owner: Owner, cooldown: int = 0) -> dict[str, Any]:
    """The IPAM part of a record for a claim of `wants` by `owner` in the store that `store` describes."""
    found: dict[str, Any] = {
        "store": store,
        "netns": owner.netns,
        "node": owner.node,
        "pod": list(owner.pod),
        "sequence": owner.sequence,
        "scope": wants[0].scope if wants else None,
        "pools": [want.pool for want in wants],
        "addresses": [want.text for want in wants],
        "pending": False,
    }
    if owner.machine:
        found["machine"] = owner.machine
    if cooldown:
        found["cooldown"] = cooldown
    return found


def cooldown(record: dict[str, Any] | None) -> int:
    """The cooldown in a record, in seconds; 0 for none."""
    found = record.get("cooldown") if record else None
    return found if isinstance(found, int) and 0 < found <= COOLDOWN else 0


def names_nothing(record: dict[str, Any] | None) -> bool:
    """Whether the record is missing, or names neither address nor rail: no ADD of railcni has claimed an address."""
    return not (record and (record.get("addresses") or record.get("members")))


def leases(attachment: Attachment, record: dict[str, Any]) -> list[Lease]:
    """The leases in a record. Raises ValueError when a member is not as `document` writes it."""
    owner = owner_from_json(record, attachment)
    try:
        places = zip(record["pools"], record["addresses"], strict=True)
        found = [Lease(want_from_json(record, pool, text), owner) for pool, text in places]
        if not isinstance(record["store"], dict):
            raise TypeError("store")
    except (KeyError, TypeError) as fault:
        raise ValueError(f"{fault} is missing or of a wrong type") from None
    return found
