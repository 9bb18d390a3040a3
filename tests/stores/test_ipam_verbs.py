"""The IPAM verbs over a real file store and real records: what exec'd calls cannot show, or only by chance.

What a runtime sees is in tests/blackbox/test_ipam.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni.shared.kernel.node import boot_id
from cni.shared.records import Records
from cni.shared.spec.errors import (
    AttachmentDiffers,
    InvalidConfig,
    IoFailure,
    NotAvailable,
    StateDamaged,
    TryAgainLater,
)
from cni.shared.spec.request import Attachment
from ipam import upkeep
from ipam.leases import Lease, Owner, Want, recorded_document, recorded_leases
from ipam.ranges import format_address
from ipam.stores.base import Claimed, Store, Taken, Unknown
from ipam.stores.file import FileStore
from tests.stores.places import called
from tests.unit.test_attachment import make_newer

NETNS = "/run/no-such-namespace"
POOL = "10.0.0.0-24"
DEAD_BOOT = "11111111-2222-3333-4444-555555555555"


class Host:
    """The verbs of one node, whose records and store lie in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.state = str(directory / "state")
        self.data = str(directory / "data")
        self.store = FileStore(self.data)
        self.records = Records(self.state)
        self.log_file = directory / "log"

    def call(self, verb: str, container: str = "c1", ipam: dict[str, Any] | None = None, **more: Any) -> list[str]:
        block = {"range": "10.0.0.0/24", "datastore": "file", "dataDir": self.data, "log_file": str(self.log_file)}
        block |= ipam or {}
        pod = more.pop("pod", None)
        environ = {"CNI_IFNAME": more.pop("ifname", "net1"), "CNI_NETNS": more.pop("netns", NETNS)}
        environ["CNI_ARGS"] = more.pop("args", f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}" if pod else "")
        config = {"cniVersion": "1.1.0", "name": more.pop("name", "rdma-net"), "ipam": block, **more}
        return called(verb, container, config, self.state, **environ)

    def add(self, container: str = "c1", ipam: dict[str, Any] | None = None, **more: Any) -> list[str]:
        return self.call("ADD", container, ipam, **more)

    def delete(self, container: str = "c1", ipam: dict[str, Any] | None = None, **more: Any) -> None:
        self.call("DEL", container, ipam, **more)

    def gc(self, *valid: str, ipam: dict[str, Any] | None = None) -> None:
        listed = [{"containerID": c, "ifname": "net1"} for c in valid]
        self.call("GC", "", ipam, **{"cni.dev/valid-attachments": listed})

    def leased(self) -> dict[str, str]:
        """Container by address, of all pools."""
        found = [lease for pool in self.store.pools() for lease in self.store.leases(pool.name)]
        return {format_address(lease.family, lease.value): lease.container_id for lease in found}

    def recorded(self) -> dict[str, list[str]]:
        """Addresses by container."""
        return {a.container_id: document["addresses"] for a, _, document in self.records.all()}

    def record(self, container: str) -> dict[str, Any]:
        return self.records.read(Attachment("rdma-net", container, "net1"), "ipam") or {}

    def rewrite(self, container: str, **members: Any) -> None:
        """Let the record of an attachment have other members."""
        attachment = Attachment("rdma-net", container, "net1")
        self.records.write(attachment, "ipam", {**self.record(container), **members})

    def locked(self, container: str, part: str = "ipam") -> contextlib.AbstractContextManager[object]:
        return self.records.locked(Attachment("rdma-net", container, "net1"), part)

    def agree(self) -> None:
        """Each lease has its record, which says of it what the store says."""
        told = [lease.key() for a, _, document in self.records.all() for lease in recorded_leases(a, document)]
        held = [lease.key() for pool in self.store.pools() for lease in self.store.leases(pool.name)]
        assert sorted(told) == sorted(held)

    def files(self) -> dict[str, tuple[int, int]]:
        """(inode, time of the last write) of every file."""
        found = [p for top in (self.state, self.data) for p in Path(top).rglob("*") if p.is_file()]
        return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def dead(self, container: str, *values: int, netns: str = NETNS) -> None:
        """An attachment of an earlier boot."""
        attachment = Attachment("rdma-net", container, "net1")
        node = os.uname().nodename
        who = Owner(attachment, node=node, boot_id=DEAD_BOOT, netns=netns, sequence=1)
        wants = [Want(POOL, 4, (10 << 24) + value, "") for value in values]
        document = recorded_document(self.store.record(), wants, who)
        self.records.write(attachment, "ipam", {**document, "bootID": DEAD_BOOT})
        assert isinstance(self.store.claim(wants, who), Claimed)


@pytest.fixture
def host(tmp_path: Path, free_paths: None) -> Host:
    return Host(tmp_path)


# --- the same attachment again ---


def test_a_retried_add_writes_nothing(host: Host) -> None:
    first = host.add(pod="a")
    before = host.files()
    assert host.add(pod="a") == first
    assert host.files() == before


def test_a_retried_add_in_a_new_namespace_keeps_the_address_and_says_where_it_is_now(host: Host) -> None:
    host.add(netns="/run/netns/old")
    assert host.add(netns="/run/netns/new") == ["10.0.0.1/24"]
    (lease,) = host.store.leases(POOL)
    assert lease.netns == "/run/netns/new"
    host.agree()


def test_a_range_changed_under_a_live_lease_moves_the_retried_attachment_if_it_no_longer_gives_it(host: Host) -> None:
    host.add("c1")
    host.add("c2")
    assert host.add("c1", {"exclude": ["10.0.0.128/25"]}) == ["10.0.0.1/24"]
    assert host.add("c1", {"range_start": "10.0.0.100"}) == ["10.0.0.100/24"]
    assert host.leased() == {"10.0.0.100": "c1", "10.0.0.2": "c2"}
    host.agree()


def test_an_exhausted_second_range_leaves_a_retried_attachment_what_it_had_and_gives_a_new_one_nothing(
    host: Host,
) -> None:
    second = {"ipRanges": [{"range": "10.9.0.0/30"}]}
    host.add("c1")
    for other in ("c2", "c3"):
        host.add(other, second)
    for container in ("c1", "new"):
        with pytest.raises(TryAgainLater, match=r"10\.9\.0\.0-30 is exhausted: 2 of the 2 .*railcni ipam leases"):
            host.add(container, second)
    assert host.leased()["10.0.0.1"] == "c1"
    assert "new" not in host.leased().values()
    host.agree()


def test_overlap_switched_on_later_reserves_what_is_held_or_moves_it(host: Host) -> None:
    apart = {"enable_overlapping_ranges": False}
    host.add("c1", apart)
    host.add("c2", apart)
    host.add("wide", {"range": "10.0.0.0/16"})  # 10.0.0.1, for nothing is reserved
    assert host.add("c2") == ["10.0.0.2/24"]
    assert host.add("c1") == ["10.0.0.3/24"]
    assert [lease.scope for lease in host.store.leases(POOL)] == ["", ""]
    host.agree()


def test_a_data_dir_changed_between_two_adds_frees_the_former_store(host: Host, tmp_path: Path) -> None:
    host.add()
    elsewhere = str(tmp_path / "elsewhere")
    assert host.add(ipam={"dataDir": elsewhere}) == ["10.0.0.1/24"]
    assert host.leased() == {}
    assert [lease.container_id for lease in FileStore(elsewhere).leases(POOL)] == ["c1"]
    host.delete()
    assert FileStore(elsewhere).pools() == []
    assert host.recorded() == {}


def test_ranges_taken_out_altogether_free_what_they_gave(host: Host) -> None:
    host.add()
    assert host.add(ipam={"range": "", "addresses": [{"address": "10.5.0.5/16"}]}) == ["10.5.0.5/16"]
    assert host.leased() == host.recorded() == {}


# --- requests ---


def test_a_requested_address_that_the_pods_former_sandbox_has_moves_to_it(host: Host) -> None:
    ask = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a;IP=10.0.0.77"
    assert host.add("old", args=ask) == ["10.0.0.77/24"]
    assert host.add("new", args=ask) == ["10.0.0.77/24"]
    assert host.leased() == {"10.0.0.77": "new"}


def test_a_refused_request_of_an_attachment_that_has_an_address_leaves_its_record_as_it_was(host: Host) -> None:
    host.add("holder", args="IP=10.0.0.77")
    assert host.add("c1") == ["10.0.0.1/24"]
    before = host.recorded()
    with pytest.raises(TryAgainLater):
        host.add("c1", args="IP=10.0.0.77")
    assert host.recorded() == before
    host.agree()


def test_two_requests_in_one_range_are_both_given_and_reserved(host: Host) -> None:
    assert host.add(args="IP=10.0.0.7,10.0.0.8", ipam={"requested_addresses": 2}) == ["10.0.0.7/24", "10.0.0.8/24"]
    assert host.add(args="IP=10.0.0.7,10.0.0.8", ipam={"requested_addresses": 2}) == ["10.0.0.7/24", "10.0.0.8/24"]
    assert host.leased() == {"10.0.0.7": "c1", "10.0.0.8": "c1"}
    host.agree()


# --- what kills and failures leave ---


class Killed(BaseException):
    """The call ends here."""


def killed(*arguments: object, **named: object) -> object:
    raise Killed


def refused(*arguments: object, **named: object) -> object:
    raise IoFailure("the disk is gone")


@contextlib.contextmanager
def failing(of: type, name: str, how: Callable[..., object], raised: type[BaseException]) -> Iterator[None]:
    """The call within ends in `raised`, since the method `name` of the class `of` is `how`."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(raised):
        patch.setattr(of, name, how)
        yield


def claim_is_killed(host: Host, container: str, **more: Any) -> None:
    """An ADD that ends after its record was written and before its claim."""
    with failing(FileStore, "claim", killed, Killed):
        host.add(container, **more)


def test_an_add_killed_before_its_claim_is_cleared_by_each_of_retry_delete_and_gc(host: Host) -> None:
    claim_is_killed(host, "c1")
    assert (host.recorded(), host.leased()) == ({"c1": ["10.0.0.1"]}, {})
    assert host.add("c1") == ["10.0.0.1/24"]
    host.agree()
    claim_is_killed(host, "c2")
    host.delete("c2")
    claim_is_killed(host, "c3")
    host.gc("c1")
    assert host.recorded() == {"c1": ["10.0.0.1"]}
    host.agree()


def test_a_takeover_killed_before_its_claim_leaves_the_lease_where_it_was(host: Host) -> None:
    host.add("old", pod="a")
    claim_is_killed(host, "new", pod="a")
    host.delete("new", pod="a")
    assert host.leased() == {"10.0.0.1": "old"}
    host.agree()


def test_a_delete_killed_between_release_and_record_is_completed_by_the_next(host: Host) -> None:
    host.add()
    with failing(Records, "remove", killed, Killed):
        host.delete()
    assert (host.recorded(), host.leased()) == ({"c1": ["10.0.0.1"]}, {})
    assert host.add("c2") == ["10.0.0.1/24"]
    host.delete()
    assert host.leased() == {"10.0.0.1": "c2"}
    host.agree()


def test_a_claim_that_the_disk_refuses_leaves_no_record(host: Host) -> None:
    with failing(FileStore, "claim", refused, IoFailure):
        host.add()
    assert host.recorded() == {}


def test_a_release_that_fails_stays_in_the_record_and_gc_makes_up_for_it(host: Host) -> None:
    host.add()
    with failing(FileStore, "release", refused, IoFailure):
        host.delete()
    ((_, _, document),) = host.records.all()
    assert document["pending"] is True
    host.gc("c1")  # the runtime may list it: its DEL has failed
    assert host.leased() == host.recorded() == {}


def test_an_add_after_a_delete_that_failed_is_not_collected(host: Host) -> None:
    host.add()
    with failing(FileStore, "release", refused, IoFailure):
        host.delete()
    assert host.add() == ["10.0.0.1/24"]
    host.gc("c1")
    assert host.leased() == {"10.0.0.1": "c1"}


# --- answers of a store that others use too ---


Made = Callable[[], object]  # the claim as the store makes it


class Answers:
    """The next claims are answered by `answers`, which are given the claim and what it wants; `wanted` has all that come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Callable[[Made, list[Want]], object]) -> None:
        left, real = list(answers), FileStore.claim
        self.wanted: list[list[int]] = []

        def claim(store: FileStore, wants: list[Want], owner: Owner, instead_of: list[Lease]) -> object:
            self.wanted.append([want.value for want in wants])
            made = partial(real, store, wants, owner, instead_of)
            return left.pop(0)(made, wants) if left else made()

        monkeypatch.setattr(FileStore, "claim", claim)


def request_lost(made: Made, wants: list[Want]) -> object:
    return Unknown(IoFailure("the disk fails"))


def reply_lost(made: Made, wants: list[Want]) -> object:
    made()
    return Unknown(IoFailure("the disk fails"))


def taken(made: Made, wants: list[Want]) -> object:
    return Taken(list(wants))


@pytest.mark.parametrize(("last", "leases"), [(request_lost, 0), (reply_lost, 1)])
def test_an_outcome_that_stays_unknown_is_an_error_with_its_reason_and_a_record_of_what_there_may_be(
    host: Host, monkeypatch: pytest.MonkeyPatch, last: Any, leases: int
) -> None:
    Answers(monkeypatch, request_lost, request_lost, last)
    with pytest.raises(IoFailure, match="the disk fails"):
        host.add()
    assert len(host.leased()) == len(host.recorded()) == leases
    host.agree()
    host.delete()
    assert host.leased() == host.recorded() == {}


def test_after_a_lost_claim_the_search_goes_on_elsewhere(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, taken)
    assert host.add() != ["10.0.0.1/24"]
    assert answers.wanted[0] == [(10 << 24) + 1]
    host.agree()


# --- damage ---


def spoil(file: Path) -> None:
    """Overwrite all but the header, by which the file tells that it was sound in this boot."""
    file.write_bytes(file.read_bytes()[:100] + b"nonsense" * 999)


def test_a_damaged_store_is_rebuilt_from_the_records(host: Host) -> None:
    for container in ("c1", "c2", "c3"):
        host.add(container, {"ipRanges": [{"range": "fd00::/64"}]}, pod=container)
    host.add("c3-new", {"ipRanges": [{"range": "fd00::/64"}]}, pod="c3")  # the record of c3 is stale from now on
    host.delete("c2")
    before = host.leased()
    spoil(Path(host.data, "leases.db"))
    with pytest.raises(StateDamaged, match="Try again"):
        host.delete("c1")
    host.delete("c1")
    assert host.add("c4") == ["10.0.0.1/24"]
    del before["fd00::1"]
    assert host.leased() == {**before, "10.0.0.1": "c4"}
    assert "restored" in host.log()
    host.delete("c3")
    assert host.leased() == {**before, "10.0.0.1": "c4"}
    host.agree()


BAD_MEMBERS: list[dict[str, Any]] = [
    *({"pod": ["ns"]}, {"store": "file"}, {"sequence": 1 << 70}, {"addresses": ["10.0.0.300"]}),
    *({"pools": []}, {"scope": 7}, {"netns": None}),
]


@pytest.mark.parametrize("bad", BAD_MEMBERS, ids=str)
def test_a_record_with_a_bad_member_hinders_neither_retry_nor_delete_nor_gc(host: Host, bad: dict[str, Any]) -> None:
    host.add()
    host.rewrite("c1", **bad)
    assert host.add() == ["10.0.0.1/24"]
    host.agree()
    host.rewrite("c1", **bad)
    host.delete()
    assert host.leased() == host.recorded() == {}
    host.add()
    host.rewrite("c1", **bad)
    host.gc()
    assert host.leased() == {}
    assert list(host.records.all()) == []


def test_a_lease_whose_record_was_lost_is_collected(host: Host) -> None:
    host.add("c1")
    host.add("c2")
    host.add("elsewhere", name="other")
    for path in Path(host.state, "attachments").iterdir():
        path.unlink()
    host.gc("c2")
    assert host.leased() == {"10.0.0.2": "c2", "10.0.0.3": "elsewhere"}


# --- DEL ---


def test_a_delete_of_what_was_never_added_makes_nothing(host: Host) -> None:
    host.delete()
    assert not Path(host.data).exists()
    assert host.recorded() == {}


def test_a_delete_without_record_and_with_an_unusable_configuration_says_so_in_the_log_alone(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    host.delete(ipam={"range": "nonsense"})
    host.delete(ipam={"datastore": "etcd", "etcd_host": "x:y"})
    assert capfd.readouterr().err.count("cannot be used") == 2


def test_a_record_of_an_unknown_store_is_told_and_stays_until_its_release(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    host.add()
    host.rewrite("c1", store={"kind": "punched cards"})
    host.delete()
    assert (
        'names a store of kind "punched cards", which this railcni does not know: use a newer' in capfd.readouterr().err
    )
    assert host.recorded() == {"c1": ["10.0.0.1"]}


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL"])
def test_a_verb_waits_for_the_call_of_its_attachment_that_still_runs(
    host: Host, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    host.add()
    monkeypatch.setattr(Records.locked, "__defaults__", (0.1,))
    with host.locked("c1"), pytest.raises(TryAgainLater, match="another operation on net1 of container c1"):
        host.call(verb, prevResult={"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/24"}]})
    assert host.leased() == {"10.0.0.1": "c1"}


# --- GC ---


def test_gc_passes_by_what_is_locked(host: Host) -> None:
    for container in ("c1", "c2", "c3"):
        host.add(container)
    with host.locked("c1"), host.locked("c2", "link"):
        host.gc()
    assert host.leased() == {"10.0.0.1": "c1", "10.0.0.2": "c2"}


def test_gc_passes_by_what_was_claimed_after_it_began(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.add("old")
    real = Records.of_network

    def add_one_meanwhile(records: Records, network: str, part: str) -> object:
        monkeypatch.setattr(Records, "of_network", real)
        host.add("new")
        return real(records, network, part)

    monkeypatch.setattr(Records, "of_network", add_one_meanwhile)
    host.gc()
    assert host.leased() == {"10.0.0.2": "new"}


def test_gc_collects_what_was_claimed_before_the_clock_was_set_back(host: Host) -> None:
    hour = 3600 * 10**9
    for container in ("c1", "c2"):
        host.add(container)
        host.rewrite(container, sequence=host.record(container)["sequence"] + hour)
    list(host.store.leases(POOL))
    host.gc("c2")
    assert list(host.recorded()) == ["c2"]


def test_a_rebuilt_store_gives_no_address_that_a_record_of_a_newer_format_names(host: Host) -> None:
    for container in ("c1", "c2", "c3"):
        host.add(container)
    host.rewrite("c2", addresses=7)
    for container in ("c1", "c2"):
        make_newer(Path(host.state, f"attachments/rdma-net:{container}:net1:ipam"))
    Path(host.data, "leases.db").unlink()
    assert host.add("c4") == ["10.0.0.2/24"]  # the address of c2, which nothing can tell any more, is named in the log
    assert host.leased() == {"10.0.0.1": "c1", "10.0.0.2": "c4", "10.0.0.3": "c3"}
    for container in ("c1", "c2"):
        with pytest.raises(IoFailure, match="install that version again"):
            host.delete(container)


def test_gc_with_a_faulty_configuration_collects_by_the_records_and_reports(host: Host) -> None:
    host.add()
    with pytest.raises(InvalidConfig):
        host.gc(ipam={"range": "nonsense"})
    assert host.leased() == host.recorded() == {}


def test_gc_goes_on_after_a_failure_and_reports_it(host: Host, tmp_path: Path) -> None:
    host.add("a-first", {"dataDir": str(tmp_path / "other")})
    host.add("b-second")
    (tmp_path / "other" / "leases.db").chmod(0o666)
    with pytest.raises(IoFailure, match="others can write"):
        host.gc()
    assert host.leased() == {}
    assert host.recorded() == {"a-first": ["10.0.0.1"]}


@pytest.mark.parametrize("entry", [7, {}, {"containerID": "c1"}, {"containerID": 7, "ifname": "net1"}], ids=str)
def test_gc_with_a_bad_entry_in_its_list_collects_nothing(host: Host, entry: Any) -> None:
    host.add()
    with pytest.raises(InvalidConfig, match="nothing is collected"):
        host.call("GC", "", **{"cni.dev/valid-attachments": [entry]})
    assert host.leased() == {"10.0.0.1": "c1"}


# --- earlier boots ---

TINY = {"range": "10.0.0.0/24", "range_end": "10.0.0.3"}


def test_an_attachment_of_an_earlier_boot_whose_namespace_is_there_or_which_is_locked_is_left_alone(host: Host) -> None:
    host.dead("alive", 1, netns="/proc/self/ns/net")
    host.dead("dead", 2, 3)
    with host.locked("dead"), pytest.raises(TryAgainLater, match="exhausted"):
        host.add("new", TINY)
    assert host.add("new", TINY) == ["10.0.0.2/24"]
    assert host.leased() == {"10.0.0.1": "alive", "10.0.0.2": "new"}
    host.agree()


def test_an_attachment_that_comes_back_while_its_earlier_boots_leases_are_looked_through_keeps_its_new_ones(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node's claim, in a store that nodes share. /dev/null as its namespace tells nothing of its life."""
    host.dead("dead", 1, 2, 3, netns="/dev/null")
    real = upkeep.of_earlier_boots

    def back_again(store: Store, *where: Any) -> list[Lease]:
        found = real(store, *where)
        who = Owner(Attachment("rdma-net", "dead", "net1"), boot_id=boot_id(), netns="/dev/null", sequence=2)
        assert isinstance(store.claim([Want(POOL, 4, lease.value, "") for lease in found], who, found), Claimed)
        return found

    monkeypatch.setattr(upkeep, "of_earlier_boots", back_again)
    with pytest.raises(TryAgainLater, match="exhausted"):
        host.add("new", TINY)


def test_an_attachment_of_an_earlier_boot_gets_its_own_address_again_and_others_leave_it_while_there_is_room(
    host: Host,
) -> None:
    host.dead("c1", 1)
    assert host.add("new") == ["10.0.0.2/24"]
    assert host.add("c1") == ["10.0.0.1/24"]
    assert DEAD_BOOT not in [lease.boot_id for lease in host.store.leases(POOL)]


# --- CHECK and STATUS ---


def check(host: Host, *addresses: str, container: str = "c1", **more: Any) -> None:
    ips = [{"address": a} for a in addresses]
    host.call("CHECK", container, prevResult={"cniVersion": "1.1.0", "ips": ips}, **more)


def test_check_finds_all_differences_at_once(host: Host) -> None:
    host.add("c1", {"ipRanges": [{"range": "fd00::/64"}]})
    host.add("c2", pod="b")
    check(host, "10.0.0.1/24", "fd00::1/64", "172.16.0.1/16")  # the last is of none of its ranges
    with pytest.raises(AttachmentDiffers) as caught:
        check(host, "10.0.0.2/24", "fd00::1/64")
    assert caught.value.code == 100
    assert "10.0.0.2/24 is leased to pod ns/b, container c2" in caught.value.msg
    assert "10.0.0.1 is not in prevResult" in caught.value.msg
    with pytest.raises(InvalidConfig, match="prevResult"):
        host.call("CHECK")


def test_check_asks_for_static_addresses(host: Host) -> None:
    static = {"addresses": [{"address": "10.0.0.250/24"}]}
    host.add(ipam=static)
    check(host, "10.0.0.1/24", "10.0.0.250/24", ipam=static)
    with pytest.raises(AttachmentDiffers, match=r"10\.0\.0\.250/24 is not in prevResult"):
        check(host, "10.0.0.1/24", ipam=static)


def test_check_of_what_holds_nothing_differs(host: Host) -> None:
    with pytest.raises(AttachmentDiffers, match=POOL):
        check(host)
    assert not Path(host.data).exists()


def test_status_of_a_store_that_cannot_be_opened_is_not_available(host: Host) -> None:
    Path(host.data).mkdir()
    Path(host.data, "leases.db").mkdir()
    with pytest.raises(NotAvailable, match=r"leases\.db"):
        host.call("STATUS")


# --- odds and ends ---


def test_an_environment_that_is_no_utf_8_is_served(host: Host) -> None:
    netns = b"/run/netns/\xff\xfe".decode("utf-8", "surrogateescape")
    assert host.add(netns=netns) == ["10.0.0.1/24"]
    assert host.add(netns=netns) == ["10.0.0.1/24"]
    host.delete(netns=netns)
    assert host.leased() == host.recorded() == {}


def test_a_claim_that_arrives_while_its_delete_looks_for_it_is_released(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.add("c1")
    (lease,) = host.store.leases(POOL)
    host.store.release([lease])

    def arrives(store: FileStore, attachment: Attachment, sequence: int) -> None:
        who = Owner(attachment, lease.pod, lease.node, lease.boot_id, lease.netns, sequence)
        assert isinstance(store.claim([Want(POOL, 4, lease.value, lease.scope)], who), Claimed)

    monkeypatch.setattr(FileStore, "settle", arrives)
    host.delete("c1")
    assert host.leased() == host.recorded() == {}
