"""The parts that the stores behind a server share: the client, the obstacles to a claim, and the JSON object of a lease."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want, as_text, owner_from_json, want_from_json
from ipam.stores.base import Store
from ipam.stores.http import Client

NOBODY = Owner(Attachment("railcni", "status", "none"), ("status", "status-0", ""))  # for the trial of a claim


class ServedStore(Store):
    """A store behind a server. `record` returns `store_ref`. `client` makes the requests."""

    def __init__(self, store_ref: dict[str, Any], client: Client) -> None:
        super().__init__()
        self._store_ref = store_ref
        self._client = client

    def record(self) -> dict[str, Any]:
        return self._store_ref

    def finish_by(self, deadline: float = float("inf"), hurries: bool = False) -> None:
        self._client.deadline, self._client.hurries = deadline, hurries

    def close(self) -> None:
        self._client.close()


def conflicts(
    instead_of: Sequence[Lease],
    wants: Sequence[Want],
    is_there: Callable[[Lease], bool],
    is_held: Callable[[Want, Sequence[Lease]], bool],
) -> list[Want]:
    """The obstacles to a claim of `wants` that replaces the leases `instead_of`; [] if nothing prevents the claim.

    Obstacles are a lease that is gone from the store, or is twice in `instead_of`; a want with the address of an
    earlier want in the same pool or scope; and a want whose address has a lease that is not in `instead_of`.

    `is_there(lease)` tells whether the lease still exists. `is_held(want, given)` tells whether a lease that is not in
    `given` holds the address.
    """
    given: list[Lease] = []
    accepted: list[Want] = []
    taken: list[Want] = []
    for old in instead_of:
        is_given = is_there(old) and not any(old.place == other.place for other in given)
        (given if is_given else taken).append(old)
    for want in wants:
        held = any(want.excludes(other) for other in accepted) or is_held(want, given)
        (taken if held else accepted).append(want)
    return taken


def to_json(lease: Lease) -> dict[str, Any]:
    """The JSON object of a lease in stores and records. The member `machine` is absent for an unknown machine."""
    machine = {"machine": lease.machine} if lease.machine else {}
    return {
        "pool": lease.pool,
        "address": lease.text,
        "scope": lease.scope,
        "network": lease.network,
        "containerID": lease.container_id,
        "ifname": lease.ifname,
        "pod": list(lease.pod),
        "node": lease.node,
        "bootID": lease.boot_id,
        "netns": lease.netns,
        "sequence": lease.sequence,
        **machine,
    }


def from_json(document: Mapping[str, Any]) -> Lease:
    """The lease that `to_json` wrote. Raises ValueError for a member that is missing or of a wrong type."""
    try:
        attachment = Attachment(*(as_text(document[key]) for key in ("network", "containerID", "ifname")))
        return Lease(
            want_from_json(document, document["pool"], document["address"]), owner_from_json(document, attachment)
        )
    except KeyError as fault:
        raise ValueError(f"{fault} is missing") from None
