"""The code that single networks and groups of rails share: the configuration, the owner, and the claim of addresses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.shared import policy
from cni.shared.config import asks_for_same_index, refuse
from cni.shared.kernel import node
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam import config as configuration
from ipam import local, own, stores
from ipam.leases import PART, Owner, Want, recorded_document, recorded_leases
from ipam.ranges import BITS, Range, host_of, parse_cidr
from ipam.rules import SharedLease
from ipam.stores.base import CREATE, SHARED_SECONDS, Unreachable
from ipam.upkeep import free_earlier_boots, is_held_here, read_record, refill, restorer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.records import HeldLock, Records
    from cni.shared.spec.request import Attachment, Request
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group
    from ipam.rules import Choice, Need
    from ipam.stores.base import Store


_PREFERRED = "whereabouts.cni.cncf.io/preferred-ip"


def configured(request: Request, log: Log) -> IpamConfig:
    """The checked configuration. `log` gets its log file and level."""
    config = configuration.read(request)
    log.path, log.level, log.hidden = config.log_file, config.log_level, config.hidden
    for note in config.notes:
        log.warning(note)
    if config.node_slice_size and config.datastore == "file":
        log.warning("ipam.node_slice_size has no effect: the file store's addresses are this node's alone")
    return config


def configured_rail(request: Request, log: Log) -> tuple[IpamConfig, Group | None]:
    """(the checked configuration, the group of a rail with addressing same-index; None for any other network)."""
    if not is_of_group(request):
        return configured(request, log), None
    from cni.shared import rail as rails_key  # most networks are no rail
    from ipam.group import indexes  # most networks are no rail

    faults: list[Fault] = []
    rail = rails_key.read(request.config, faults)
    refuse(faults)
    assert rail is not None  # noqa: S101  # the key is there
    config = configured(request, log)
    return config, indexes.group_of(rail, config)


def permit(config: IpamConfig, group: Group | None) -> None:
    """Raise InvalidConfig when the policy does not let networks use a range, a static address or the network_name.

    Only ADD and STATUS call this: an existing attachment can always be compared and deleted. The policy for stores
    holds for every verb (ipam.source).
    """
    node_policy, name = policy.current(), config.network_name
    if not any(policy.matches(one, name) for one in node_policy.network_names):
        raise node_policy.refusal("networkNames", f'ipam.network_name "{name[:60]}"')
    if "*" in node_policy.ranges:
        return
    try:
        allowed = [Range(*parse_cidr(text)) for text in node_policy.ranges]
    except ValueError as fault:
        raise InvalidConfig(f"{node_policy.path}: ranges {codec.dumps(node_policy.ranges)[:100]}: {fault}") from None
    used = [(f"range {rng}", rng) for rng in ([n.rng for n in group.needs] if group else config.ranges)]
    used += [(f"static address {a.address}", Range(*(at := host_of(a.address)), BITS[at[0]])) for a in config.addresses]
    for what, rng in used:
        if not any(r.family == rng.family and r.network <= rng.network and rng.top <= r.top for r in allowed):
            raise node_policy.refusal("ranges", what)


def is_of_group(request: Request) -> bool:
    """Whether the network is a rail whose group gives a pod one index on all rails (rail.addressing: same-index)."""
    return asks_for_same_index(request.config)


def ref_of(config: IpamConfig, group: Group | None) -> dict[str, Any]:
    """The reference to the store of `config`, with the pools of all rails if there is a `group`."""
    store_ref = stores.ref_of(config)
    if group and "pools" in store_ref:
        store_ref["pools"] = group.pools()
    return store_ref


def owner_of(request: Request, config: IpamConfig) -> Owner:
    namespace, name, uid = (_printable(part) for part in request.pod)
    netns = _printable(request.netns)
    machine = "" if config.datastore == "file" else node.machine_id()  # a file's leases are of one machine
    boot = node.boot_id()
    return Owner(request.attachment, (namespace, name, uid), config.node, boot, netns, time.time_ns(), machine)


def _printable(text: str) -> str:
    """`text` with "?" in place of bytes that are not UTF-8, which a store could not keep."""
    return text.encode("utf-8", "replace").decode()


def reached(recorded: dict[str, Any], config: IpamConfig) -> dict[str, Any]:
    """The recorded reference to a store, with the configuration's password if the configuration names that store."""
    if not stores.is_shared(recorded) or config.datastore != recorded.get("kind"):
        return recorded
    return stores.joined(recorded, stores.ref_of(config))


def claim(
    wanted: Sequence[Choice],
    owner: Owner,
    config: IpamConfig,
    store_ref: dict[str, Any],
    record: dict[str, Any] | None,
    records: Records,
    of_group: dict[str, Any] | None = None,
) -> tuple[list[int], dict[str, Any] | None]:
    """Lease an address for each need of `wanted` to `owner`. Returns (the addresses, the record that names them).

    `record` is the present record, whose lock the caller holds. `of_group` has the extra members of a group's record.
    """
    from ipam.acquire import Terms, acquire  # other verbs claim no address

    wire = own.Wire(config.network)
    if record is None:
        _refuse_own(wanted, wire)
    else:  # the sequence grows even if the clock was set back
        owner.sequence = max(owner.sequence, record["sequence"] + 1)
    store, record = _opened(owner, config, store_ref, record, records)
    is_shared = stores.is_shared(store_ref)
    recorded = recorded_leases(owner.attachment, record) if record and is_shared else []
    proposals = _Proposals(records)
    if is_shared and store.spreads and of_group is None:
        store.is_claimed_here = proposals.is_of_another
    draft = _Draft(records, owner, record, store_ref, config.cooldown_seconds, of_group or {})
    terms = Terms(
        draft.write,
        free_earlier_boots=lambda pool: free_earlier_boots(store, pool, owner, records),
        recorded=recorded,
        doubtful=recorded if record and record["pending"] else (),
        preferred=lambda: [*local.preferred(records, owner), *_preferred(config, owner.pod, records.log)],
        seconds=config.store_timeout if is_shared else 0,
        new=record is None and of_group is None,
        is_avoided=lambda address: local.is_avoided(records, address),
        is_own=lambda want: wire.is_own(want) or (is_shared and is_held_here(want, owner, records)),
        is_neighbour=wire.is_neighbour,
    )
    try:
        while True:
            try:
                values = acquire(store, wanted, owner, terms)
            except SharedLease as found:
                wanted = [choice for choice in wanted if choice is not found.need]
                draft.shared.append(found.need)
                continue
            if draft.shared:
                records.remind(True)
            return values, draft.record
    except Unreachable:
        raise  # the claim may have succeeded; DEL or GC finds the leases by the record
    except CniError:
        if draft.record is not record:
            _forget(owner.attachment, store, records, record)
        raise
    finally:
        proposals.release()


def _refuse_own(wanted: Sequence[Choice], wire: own.Wire) -> None:
    """Raise TryAgainLater when an address that `wanted` requests is this node's own."""
    for need in [need for choice in wanted for need in choice.needs]:
        if need.requested is None or need.shared:
            continue
        if wire.is_own(want := need.want(need.requested)):
            raise TryAgainLater(
                f"the requested address {want.text} (pool {need.pool}) is this node's own, on its link: ask for another one"
            )


def _opened(
    owner: Owner, config: IpamConfig, store_ref: dict[str, Any], record: dict[str, Any] | None, records: Records
) -> tuple[Store, dict[str, Any] | None]:
    """(the store to claim in, the present record). A lost record may be made again here from AddressLeases."""
    restore = restorer(store_ref, records, owner)
    store = stores.open_store(store_ref, CREATE, restore, config.store_timeout, records.log.warning)
    store.cooldown = config.cooldown_seconds
    if store_ref["kind"] == "addresslease" and not local.is_complete(records):
        store.finish_by(time.monotonic() + config.store_timeout)
        if refill(store, owner, records, config.cooldown_seconds) and record is None:  # type: ignore[arg-type]  # it is the class of this kind
            record = read_record(owner.attachment, records)
            owner.sequence = max(owner.sequence, record["sequence"] + 1) if record else owner.sequence
    return store, record


class _Draft:
    """The record of an ADD, written before each claim. `shared` are the needs whose lease another attachment has."""

    __slots__ = ("_cooldown", "_members", "_owner", "_records", "_store_ref", "record", "shared")

    def __init__(
        self,
        records: Records,
        owner: Owner,
        record: dict[str, Any] | None,
        store_ref: dict[str, Any],
        cooldown: int,
        members: dict[str, Any],
    ) -> None:
        self._records, self._owner, self._store_ref = records, owner, store_ref
        self._cooldown, self._members = cooldown, members
        self.record = record
        self.shared: list[Need] = []

    def write(self, wants: Sequence[Want], sequence: int) -> None:
        """Write the record with the addresses of `wants`, before these are claimed."""
        owner = self._owner
        owner.sequence = sequence
        new = recorded_document(stores.recorded(self._store_ref), wants, owner, self._cooldown) | self._members
        if self.shared or (self.record and "shared" in self.record):
            new["shared"] = [[need.pool, need.want(need.requested or 0).text] for need in self.shared]
        if self.record is None or any(self.record.get(key) != value for key, value in new.items()):
            self._records.write(owner.attachment, PART, new)
            self.record = new
            if stores.is_shared(self._store_ref):
                local.note_holder(self._records, owner.attachment, wants)


class _Proposals:
    """The addresses that a call is about to claim, each locked, so that other calls of this node propose others."""

    __slots__ = ("_locks", "_records")

    def __init__(self, records: Records) -> None:
        self._records = records
        self._locks: dict[tuple[str, str], HeldLock] = {}

    def is_of_another(self, want: Want) -> bool:
        """Lock the address of `want` and return False; return True if another call has locked it already."""
        place = want.pool, want.text
        if place not in self._locks:
            lock = self._records.try_locked_address(*place)
            if lock is None:
                return True
            self._locks[place] = lock
        return False

    def release(self) -> None:
        for lock in self._locks.values():
            lock.release()


def _forget(attachment: Attachment, store: Store, records: Records, former: dict[str, Any] | None) -> None:
    """Replace the record of a failed ADD by the `former` one (None: no record), if certainly nothing was claimed.

    A lost store is restored from the records, so no record may name an address that its attachment does not have.
    """
    try:
        held = {lease.text for lease in store.find(attachment)}
        if former and held in (set(), set(former["addresses"])):
            records.write(attachment, PART, former)
        elif not former and not held:
            records.remove(attachment, PART)
    except CniError:
        pass  # DEL or GC ends the attachment by the record


def _preferred(config: IpamConfig, pod: tuple[str, str, str], log: Log) -> list[tuple[int, int]]:
    """The addresses, (family, value), in the annotation of the pod (namespace, name, uid), the best first.

    Returns [] if the uid differs and, with a log line, if the pod or the annotation cannot be read.
    Some builds of whereabouts read the same annotation, with one address, and ignore it if the address is not free.
    """
    if not (config.preferred_ip_annotation and pod[1]):
        return []
    from ipam.stores.apiserver import Api, uid_of  # most networks read no annotation
    from ipam.stores.apiserver.faults import Gone  # most networks read no annotation

    api = Api(config.kubeconfig, min(SHARED_SECONDS, config.store_timeout))
    try:
        metadata = api.pod(*pod[:2])
    except Gone:
        log.warning(f"there is no pod {pod[0]}/{pod[1]}: its annotation {_PREFERRED} is ignored")
        return []
    except CniError as fault:
        log.warning(f"annotation {_PREFERRED} is ignored: {fault.msg}")
        return []
    finally:
        api.close()
    if pod[2] and uid_of(metadata) != pod[2]:
        return []
    text = str((metadata.get("annotations") or {}).get(_PREFERRED) or "")
    try:
        return [host_of(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        log.warning(
            f'annotation {_PREFERRED} "{text[:100]}" of pod {pod[0]}/{pod[1]}: want addresses, separated by commas'
        )
        return []
