"""One index for all rails of a group, alike over every store: claimed once, in any order, whatever is killed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec.errors import AttachmentDiffers, InvalidConfig, NotAvailable, TryAgainLater
from cni.shared.spec.request import Attachment
from ipam import local, own, upkeep
from ipam.group.rails import attachment_of
from ipam.stores.apiserver import Api
from ipam.stores.etcd.client import EtcdClient
from ipam.stores.file.database import Database
from tests.stores.places import MAKERS, SHARED, Place, cut, made, mend
from tests.stores.test_ipam_verbs import Killed

COUNT = 4
RANGES = [f"10.0.{rail}.0/28" for rail in range(COUNT)]


class Rails:
    """The networks rail-0 to rail-3 of one group, on one node of a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.ranges: list[Any] = list(RANGES)

    def call(self, verb: str, rail: int, container: str = "c1", pod: str = "", **more: Any) -> list[str]:
        """What an ADD gives. `config` goes over the network, `ipam` over its block."""
        own = self.ranges[rail]
        block = {"range": own, **more.pop("ipam", {})}
        if isinstance(own, list):
            block |= {"range": "", "ipRanges": [{"range": cidr} for cidr in own]}
        key = {"index": rail, "group": "gpu", "addressing": "same-index", "ranges": self.ranges} | more.pop("key", {})
        config = {"name": f"rail-{rail}", "rail": key, **more.pop("config", {})}
        return self.place.call(verb, container, pod, **{"ifname": f"net{rail}", "config": config, **block, **more})

    def add(self, rail: int, container: str = "c1", pod: str = "", **more: Any) -> str:
        return " ".join(self.call("ADD", rail, container, pod, **more))

    def delete(self, rail: int, container: str = "c1", pod: str = "", **more: Any) -> None:
        self.call("DEL", rail, container, pod, **more)

    def link(self, rail: int, container: str = "c1", **key: Any) -> Attachment:
        """Leave the record that a link plugin of ours keeps from before its IPAM's ADD until after its DEL."""
        config = {"rail": {"index": rail, "group": "gpu", "addressing": "same-index", "ranges": self.ranges} | key}
        link = Attachment(f"rail-{rail}", container, f"net{rail}")
        self.records.write(link, "link", {"config": json.dumps(config), "created": 1})
        return link

    def attach(self, *rails: int) -> dict[str, Any]:
        """ADD with our link plugin, and then the group's record is lost. What describes the store."""
        for rail in rails:
            self.link(rail)
            self.add(rail)
        store_ref = self.store_ref
        self.lose()
        return store_ref

    def detach(self, rail: int) -> None:
        """DEL with our link plugin."""
        self.delete(rail)
        self.records.remove(Attachment(f"rail-{rail}", "c1", f"net{rail}"), "link")

    def lose(self) -> None:
        self.records.remove(attachment_of("gpu", "c1"), "ipam")

    def cut(self) -> None:
        """Let the store be out of reach, which a file is not."""
        if self.place.shared:
            cut(self.place)

    def mend(self) -> None:
        if self.place.shared:
            mend(self.place)

    def flush(self, store_ref: dict[str, Any]) -> int:
        """As by the command or the agent, which know the store of a configuration: with all pools."""
        pools = {"pools": [text.replace("/", "-") for text in RANGES]} if store_ref["kind"] == "kubernetes" else {}
        return upkeep.flush(self.records, {**store_ref, **pools}, 10)

    def foreign(self, rail: int, index: int, container: str = "other") -> None:
        """A pod of a plain network on the subnet of a rail."""
        self.place.call("ADD", container, ip=f"10.0.{rail}.{index}", range=RANGES[rail])

    def release(self, *rails: int, store_ref: dict[str, Any] | None = None) -> None:
        """Let the store lose the leases of the group's container on some rails."""
        store = self.place.store(store_ref or self.store_ref)
        pools = [f"10.0.{rail}.0-28" for rail in rails]
        store.release([lease for lease in store.find(attachment_of("gpu", "c1")) if lease.pool in pools])

    @property
    def records(self) -> Records:
        return self.place.records()

    def all_leased(self, store_ref: dict[str, Any]) -> dict[str, str]:
        return self.place.leased({key: value for key, value in store_ref.items() if key != "pools"})

    @property
    def store_ref(self) -> dict[str, Any]:
        found: dict[str, Any] = self.records.of_groups("ipam")[0][1]["store"]
        return {key: value for key, value in found.items() if key != "pools"}


@pytest.fixture(autouse=True)
def no_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rail of a NIC without a name here avoids the addresses of all links and their neighbours, and this machine's are not the tests'."""
    for name in ("is_own", "is_neighbour"):
        monkeypatch.setattr(own.Wire, name, lambda wire, want: False)


LONG = [pytest.param(name, marks=pytest.mark.long) for name in SHARED]


@pytest.fixture(params=["file", *LONG])
def rails(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Rails]:
    yield from map(Rails, made(request, tmp_path))


@pytest.fixture(params=SHARED)
def shared_rails(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Rails]:
    yield from map(Rails, made(request, tmp_path))


def test_stores_that_nodes_share_give_an_index_once_too(shared_rails: Rails) -> None:
    rails = shared_rails
    rails.foreign(1, 1)
    assert [rails.add(rail) for rail in (1, 0)] == ["10.0.1.2", "10.0.0.2"]
    assert rails.add(0, "c2", node="node-2") == "10.0.0.3"
    store_ref = rails.store_ref
    for rail in (0, 1):
        assert "c1" in rails.all_leased(store_ref).values()
        rails.delete(rail)
    assert "c1" not in rails.all_leased(store_ref).values()


def test_a_pod_has_the_same_index_on_every_rail_in_whatever_order_they_are_attached(rails: Rails) -> None:
    rails.foreign(2, 1)
    for container, order in (("c1", (3, 0, 2, 1)), ("c2", (1, 2, 3, 0))):
        given = {rail: rails.add(rail, container, container) for rail in order}
        index = 2 if container == "c1" else 3
        assert given == {rail: f"10.0.{rail}.{index}" for rail in order}
    store_ref = rails.store_ref
    for rail in (2, 0, 1):
        rails.delete(rail)
        assert sum(container == "c1" for container in rails.all_leased(store_ref).values()) == COUNT
    rails.delete(3)
    assert "c1" not in rails.all_leased(store_ref).values()
    assert [rails.add(rail, "c3") for rail in (0, 1)] == ["10.0.0.2", "10.0.1.2"]
    for rail in (0, 0, 1, 2, 3):
        rails.delete(rail, "c3")
        rails.delete(rail, "c2")
    assert list(rails.all_leased(store_ref).values()) == ["other"]
    assert rails.records.of_groups("ipam") == []


def test_a_retried_add_of_a_rail_gets_the_same_and_writes_nothing(rails: Rails) -> None:
    first = [rails.add(rail) for rail in (0, 1)]
    record = next((rails.place.directory / "node-1/attachments").glob("@gpu*"))
    before = record.stat()
    assert [rails.add(rail) for rail in (1, 0)] == first[::-1]
    assert (record.stat().st_ino, record.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_restarted_sandbox_takes_the_index_over_and_a_late_delete_frees_nothing(rails: Rails) -> None:
    rails.foreign(0, 1)
    assert [rails.add(rail, "c1", "web", uid="u") for rail in range(COUNT)] == [f"10.0.{n}.2" for n in range(COUNT)]
    assert [rails.add(rail, "c2", "web", uid="u") for rail in (2, 3)] == ["10.0.2.2", "10.0.3.2"]
    store_ref = rails.store_ref
    for rail in range(COUNT):
        rails.delete(rail, "c1", "web", uid="u")
    held = rails.all_leased(store_ref)
    assert sum(container == "c2" for container in held.values()) == COUNT, held
    assert rails.add(0, "c9", "web", uid="another") == "10.0.0.3"


def test_a_new_sandbox_gets_the_index_that_the_old_one_has_just_released(rails: Rails) -> None:
    """Kubelet calls DEL for the old sandbox first."""
    other, web = "other-7d9f8-abcde", "web-7d9f8-abcde"
    rails.foreign(0, 1)
    for rail in range(COUNT):
        rails.add(rail, "c0", other)
    assert [rails.add(rail, "c1", web, uid="u") for rail in range(COUNT)] == [f"10.0.{n}.3" for n in range(COUNT)]
    for container, pod in (("c0", other), ("c1", web)):
        for rail in range(COUNT):
            rails.delete(rail, container, pod)
    order = (2, 0, 1, 3)
    assert [rails.add(rail, "c2", web, uid="u") for rail in order] == [f"10.0.{n}.3" for n in order]


def test_no_index_is_given_whose_address_is_a_next_hop_of_the_network_or_in_use(rails: Rails) -> None:
    local.found_in_use(Records(str(rails.place.directory / "node-1"), Log()), "10.0.2.2/28")
    assert rails.add(0, ipam=ROUTES) == "10.0.0.3"
    assert [rails.add(rail) for rail in (1, 2)] == ["10.0.1.3", "10.0.2.3"]


ROUTES = {"routes": [{"dst": "10.0.0.0/16", "gw": "10.0.0.1"}]}


def test_a_rail_keeps_an_index_that_another_rail_has_though_its_next_hop_is_there(rails: Rails) -> None:
    """The other rail does not know of it, since rail.ranges do not exclude it."""
    assert rails.add(1) == "10.0.1.1"
    assert [rails.add(0, ipam=ROUTES) for _ in range(2)] == ["10.0.0.1"] * 2
    assert rails.add(1) == "10.0.1.1"


def test_rails_may_have_several_addresses_each(rails: Rails) -> None:
    rails.ranges = [[f"10.0.{rail}.0/28", f"fd00:{rail}::/64"] for rail in range(2)]
    rails.foreign(1, 1)
    assert rails.add(1) == "10.0.1.2 fd00:1::2"
    assert rails.add(0) == "10.0.0.2 fd00::2"


def test_an_address_that_is_asked_for_decides_the_index(rails: Rails) -> None:
    assert rails.add(1, ip="10.0.1.9") == "10.0.1.9"
    assert rails.add(3) == "10.0.3.9"
    with pytest.raises(InvalidConfig, match="does not have index 9, which this container has"):
        rails.add(0, ip="10.0.0.5")
    rails.foreign(2, 7)
    with pytest.raises(TryAgainLater, match=r"10\.0\.2\.7 .* is held by container other"):
        rails.add(0, "c2", ip="10.0.0.7")
    assert rails.add(0, "c2", ip="10.0.0.8") == "10.0.0.8"


def test_a_full_group_says_so_and_is_not_ready(rails: Rails) -> None:
    rails.ranges = ["10.0.0.0/30", "10.0.1.0/30"]
    rails.add(0, "c1")
    rails.add(1, "c2")
    for verb in (lambda: rails.add(0, "c3"), lambda: rails.call("STATUS", 1)):
        with pytest.raises((TryAgainLater, NotAvailable), match="rail group gpu is exhausted: each of its 2 indexes"):
            verb()
    assert rails.add(0, "c2") == "10.0.0.2"
    rails.delete(0, "c1")
    rails.call("STATUS", 1)
    assert rails.add(1, "c3") == "10.0.1.1"


def test_a_rail_is_attached_to_a_container_once(rails: Rails) -> None:
    rails.add(0)
    with pytest.raises(InvalidConfig, match="rail 0 of group gpu is attached to this container already, as net0"):
        rails.add(0, ifname="net9")
    with pytest.raises(InvalidConfig, match="rail.ranges of this network are not those of group gpu as net0"):
        rails.ranges = [*RANGES[:3], "10.0.7.0/28"]
        rails.add(1)


def test_check_finds_what_is_no_longer_leased_on_a_rail(rails: Rails) -> None:
    def check(rail: int, index: int) -> None:
        ips = [{"address": f"10.0.{rail}.{index}/28"}]
        rails.call("CHECK", rail, config={"prevResult": {"cniVersion": "1.1.0", "ips": ips}})

    for rail in (0, 1):
        rails.add(rail)
        check(rail, 1)
    with pytest.raises(AttachmentDiffers, match="10.0.1.2 is not leased; its index is 2, and the group's is 1"):
        check(1, 2)
    rails.release(1)
    check(0, 1)
    with pytest.raises(AttachmentDiffers, match="10.0.1.1 is not leased"):
        check(1, 1)
    assert rails.add(1) == "10.0.1.1"
    check(1, 1)


def test_an_index_that_was_lost_to_another_while_rails_are_attached_is_refused_and_not_changed(rails: Rails) -> None:
    rails.add(0)
    rails.release(1)
    rails.foreign(1, 1)
    with pytest.raises(TryAgainLater, match=r"10\.0\.1\.1 .* is held by container other"):
        rails.add(1)
    assert rails.add(2) == "10.0.2.1"


def test_gc_takes_the_rails_that_the_runtime_no_longer_lists_and_with_the_last_one_the_index(rails: Rails) -> None:
    def collect(rail: int, *valid: str) -> None:
        listed = [{"containerID": container, "ifname": f"net{rail}"} for container in valid]
        rails.call("GC", rail, config={"cni.dev/valid-attachments": listed})

    for container in ("c1", "c2"):
        for rail in range(2):
            rails.add(rail, container)
    store_ref = rails.store_ref
    collect(0, "c1", "c2")
    collect(0, "c1")
    collect(2)
    assert sorted(set(rails.all_leased(store_ref).values())) == ["c1", "c2"]
    assert rails.add(1, "c2") == "10.0.1.2"
    collect(1, "c1")
    assert set(rails.all_leased(store_ref).values()) == {"c1"}
    assert [a.container_id for a, _ in rails.records.of_groups("ipam")] == ["c1"]


def test_without_a_record_each_rail_frees_its_own(rails: Rails) -> None:
    for rail in (0, 1):
        rails.add(rail)
    store_ref = rails.store_ref
    rails.lose()
    rails.delete(0)
    assert sorted(rails.all_leased(store_ref)) == ["10.0.1.1", "10.0.2.1", "10.0.3.1"]
    assert rails.add(1) == "10.0.1.1"
    for rail in (1, 0):
        rails.delete(rail)
    assert rails.all_leased(store_ref) == {}


def test_a_plain_rail_is_given_addresses_like_any_network(rails: Rails) -> None:
    plain = {"addressing": "plain"}
    rails.foreign(1, 1)
    assert [rails.add(rail, key=plain) for rail in (0, 1)] == ["10.0.0.1", "10.0.1.2"]
    for rail in (0, 1):
        rails.delete(rail, key=plain)
    assert [a.container_id for a, _, _ in rails.records.all()] == ["other"]


# --- configurations ---


@pytest.mark.parametrize(
    ("key", "ipam", "words"),
    [
        ({"ranges": []}, {}, r"rail.ranges \[\]: has 0 members"),
        ({"ranges": ["10.0.0.0/28", 7]}, {}, "rail.ranges .*want a JSON object"),
        ({"ranges": ["10.0.9.0/28", *RANGES[1:]]}, {}, "is not what rail.ranges.0. says .10.0.9.0/28."),
        ({"ranges": [RANGES[0], "10.0.1.0/33"]}, {}, r"rail.ranges\[1\]\[0\].range \"10.0.1.0/33\": want a CIDR"),
        ({"ranges": [RANGES[0], RANGES[0]]}, {}, r"rail.ranges\[1\] \"10.0.0.0/28\": is the range of rail 0 too"),
        (
            {},
            {"gateway": "10.0.0.14"},
            'rail.ranges "10.0.0.14": is not given by this network .*gateway.*exclude it in',
        ),
        ({}, {"exclude": ["10.0.0.4/30"]}, 'rail.ranges "10.0.0.4"'),
        ({}, {"node_slice_size": "/30"}, "ipam.node_slice_size .*leave it out"),
        ({"index": "0"}, {}, "rail.index"),
        ({"index": 9}, {}, "this one is rail 9"),
        ({"group": "a/b"}, {}, "rail.group"),
        ({"addressing": "same"}, {}, 'rail.addressing "same": want one of plain, same-index'),
        ({"addressing": "same-index", "routing": "yes"}, {}, "rail.routing"),
        ({"ranges": [RANGES[0], {"range": "10.0.1.0/24", "range_start": "10.0.1.20"}]}, {}, "have no common index"),
    ],
)
def test_a_group_that_cannot_work_is_refused(
    key: dict[str, Any], ipam: dict[str, Any], words: str, tmp_path: Path, free_paths: None
) -> None:
    for place in MAKERS["file"](tmp_path):
        with pytest.raises(InvalidConfig, match=words):
            Rails(place).add(0, key=key, ipam=ipam)


def test_what_a_rail_excludes_is_given_on_no_rail(tmp_path: Path, free_paths: None) -> None:
    first = {"range": "10.0.0.0/28", "range_start": "10.0.0.3"}
    second = {"range": "10.0.1.0/24", "exclude": ["10.0.1.4/31", "10.0.1.3"]}
    for place in MAKERS["file"](tmp_path):
        rails = Rails(place)
        rails.ranges = [first, second]
        assert rails.add(1, ipam=second) == "10.0.1.6"
        assert rails.add(0, ipam=first) == "10.0.0.6"


# --- kills ---


class Killer:
    """Ends the process before or after its Nth step: a write of a record, a request to a server, a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = -1
        self._after = False
        self.steps = itertools.count()
        steps: list[tuple[Any, str]] = [
            (Records, "write"),
            (Records, "remove"),
            (Database, "commit"),
            (EtcdClient, "call"),
        ]
        for owner, name in (*steps, *((Api, name) for name in ("get", "patch", "create", "delete"))):
            monkeypatch.setattr(owner, name, self._stepping(getattr(owner, name)))

    def _stepping(self, call: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            here = next(self.steps) == self._at
            if here and not self._after:
                raise Killed
            answer = call(*arguments, **options)
            if here:
                raise Killed
            return answer

        return step

    def kill(self, at: int, after: bool, *calls: Callable[[], object]) -> None:
        """Make `calls`, and kill the one that comes to step `at`."""
        self.steps, self._at, self._after = itertools.count(), at, after
        try:
            for call in calls:
                call()
        except Killed:
            self.killed = True
        finally:
            self._at = -1

    def rounds(self) -> Iterator[tuple[int, bool]]:
        """(step, whether it is made before the kill), from the first step on, until no call has been killed."""
        for at in itertools.count():
            self.killed = False
            yield from ((at, after) for after in (False, True))
            if not self.killed:
                break
        assert at > 2


@pytest.mark.well("it is killed at each of the requests that a well server gets")
@pytest.mark.long
def test_an_add_that_is_killed_anywhere_is_completed_by_a_retry_or_cleared_by_a_delete(
    rails: Rails, monkeypatch: pytest.MonkeyPatch
) -> None:
    rails.ranges = rails.ranges[:3]
    rails.foreign(0, 1)
    store_ref = rails.place.store_ref
    killer = Killer(monkeypatch)
    for at, after in killer.rounds():
        container = f"c{at}-{after}"
        killer.kill(at, after, partial(rails.add, 1, container))
        assert set(rails.all_leased(store_ref).values()) - {container} == {"other"}
        if at % 2:  # another pod takes what the killed one was about to have on another rail
            rails.add(2, "beside", key={"addressing": "plain"})
        given = [rails.add(rail, container) for rail in (2, 1, 0)]
        assert len({address.rpartition(".")[2] for address in given}) == 1, given
        if at % 2:
            rails.delete(2, "beside", key={"addressing": "plain"})
        for rail in range(3):
            rails.delete(rail, container)
        killer.kill(at, after, partial(rails.add, 0, container))
        rails.delete(0, container)
        assert set(rails.all_leased(store_ref).values()) == {"other"}
        assert rails.records.of_groups("ipam") == []


@pytest.mark.long
def test_a_delete_that_is_killed_anywhere_is_completed_by_the_next(
    rails: Rails, monkeypatch: pytest.MonkeyPatch
) -> None:
    rails.ranges = rails.ranges[:3]
    rails.foreign(0, 1)
    store_ref = rails.place.store_ref
    killer = Killer(monkeypatch)
    for at, after in killer.rounds():
        for rail in (0, 2):
            rails.add(rail)
        killer.kill(at, after, partial(rails.delete, 0), partial(rails.delete, 2))
        for rail in (0, 2):
            rails.delete(rail)
        assert set(rails.all_leased(store_ref).values()) == {"other"}
        assert rails.records.of_groups("ipam") == []


def test_a_release_that_no_server_answers_is_made_later(shared_rails: Rails) -> None:
    rails = shared_rails
    for rail in (0, 1):
        rails.add(rail)
    store_ref = rails.store_ref
    rails.delete(0)
    rails.cut()
    rails.delete(1)
    assert rails.place.pending() == ["c1"]
    rails.mend()
    rails.place.age()
    rails.add(3, "c5")
    assert "c1" not in rails.all_leased(store_ref).values()


# --- lost records ---


def test_without_its_record_too_a_group_keeps_all_addresses_until_the_last_rail_that_has_a_link_is_deleted(
    rails: Rails,
) -> None:
    store_ref = rails.attach(0, 1, 2)
    rails.cut()
    for rail in (1, 0):
        rails.detach(rail)
        assert rails.place.pending() == []
    rails.delete(0)  # again
    rails.mend()
    assert rails.flush(store_ref) == 0
    assert sorted(rails.all_leased(store_ref)) == [f"10.0.{rail}.1" for rail in range(COUNT)]
    rails.detach(2)
    assert rails.all_leased(store_ref) == {}  # those too of the rail that was never attached
    assert rails.records.all() == []


def test_the_last_delete_without_a_record_that_reaches_no_server_is_made_up_for_with_all_addresses(
    shared_rails: Rails,
) -> None:
    rails = shared_rails
    store_ref = rails.attach(1)
    rails.cut()
    rails.detach(1)
    assert rails.place.pending() == ["c1"]
    rails.mend()
    assert len(rails.all_leased(store_ref)) == COUNT
    assert rails.flush(store_ref) == 0
    assert rails.all_leased(store_ref) == {}
    assert rails.records.all() == []


def test_deletes_at_once_without_a_record_free_everything_together(rails: Rails) -> None:
    """The record of a link goes after IPAM's DEL, so another rail's DEL may still see it."""
    store_ref = rails.attach(0, 1)
    rails.delete(0)
    rails.delete(1)
    assert rails.all_leased(store_ref) == {}


def test_a_rail_without_a_link_frees_and_records_nothing_while_others_have_theirs(rails: Rails) -> None:
    store_ref = rails.attach(0, 1)
    rails.delete(2)
    assert len(rails.all_leased(store_ref)) == COUNT
    assert rails.records.of_groups("ipam") == []


def test_links_of_other_containers_groups_and_of_plain_rails_keep_nothing(rails: Rails) -> None:
    store_ref = rails.attach(0)
    rails.link(1, "c2")
    rails.link(2, group="other")
    rails.link(3, addressing="plain")
    rails.records.write(Attachment("plain", "c1", "net7"), "link", {"config": "{}", "created": 1})
    rails.detach(0)
    assert rails.all_leased(store_ref) == {}


@pytest.mark.parametrize(
    "link", [{}, {"config": "[]", "created": 1}, {"config": "no JSON"}, {"config": '{"rail": 7}'}, None]
)
def test_where_a_link_record_is_damaged_its_rail_may_be_attached_and_a_delete_frees_its_own_alone(
    rails: Rails, link: dict[str, Any] | None
) -> None:
    store_ref = rails.attach(0, 1)
    damaged = rails.link(2)
    if link is None:
        (path,) = Path(rails.records.directory, "attachments").glob(f"{damaged.network}:*:link")
        path.write_text("nonsense")
    else:
        rails.records.write(damaged, "link", link)
    for rail, left in ((0, ["10.0.1.1", "10.0.2.1", "10.0.3.1"]), (1, ["10.0.2.1", "10.0.3.1"])):
        rails.detach(rail)
        assert sorted(rails.all_leased(store_ref)) == left


def test_a_rail_that_is_attached_after_the_record_was_lost_has_the_index_of_the_others_or_none(rails: Rails) -> None:
    store_ref = rails.attach(0, 1, 2)
    rails.detach(0)
    rails.release(0, 3, store_ref=store_ref)
    rails.foreign(3, 1)
    with pytest.raises(TryAgainLater, match=r"10\.0\.3\.1 .* is held by container other"):
        rails.add(3)
    rails.place.delete("other", range=RANGES[3])
    assert [rails.add(rail) for rail in (0, 1, 2)] == ["10.0.0.1", "10.0.1.1", "10.0.2.1"]


def test_gc_collects_a_group_whose_record_was_made_anew(rails: Rails) -> None:
    store_ref = rails.attach(0, 1)
    rails.detach(0)
    for rail in (0, 1):
        rails.call("GC", rail, config={"cni.dev/valid-attachments": []})
        assert len(rails.all_leased(store_ref)) == COUNT  # rail 1's link is there
    rails.records.remove(Attachment("rail-1", "c1", "net1"), "link")
    rails.call("GC", 1, config={"cni.dev/valid-attachments": []})
    assert rails.all_leased(store_ref) == {}


def test_where_neither_group_nor_link_has_a_record_nothing_is_freed_later_than_by_the_delete_itself(
    shared_rails: Rails,
) -> None:
    """It cannot be told which rails are attached by then: Go's macvlan keeps no record of its links."""
    rails = shared_rails
    for rail in (0, 1):
        rails.add(rail)
    store_ref = rails.store_ref
    rails.lose()
    rails.cut()
    rails.delete(0)
    rails.mend()
    assert "its addresses stay leased until" in rails.place.log()
    assert rails.records.all() == []
    assert rails.flush(store_ref) == 0
    assert len(rails.all_leased(store_ref)) == COUNT
    rails.delete(1)
    assert sorted(rails.all_leased(store_ref)) == ["10.0.0.1", "10.0.2.1", "10.0.3.1"]


# --- damaged records ---


@pytest.mark.parametrize(
    "damage",
    [
        {"pending": True},
        {"pending": True, "store": 7},
        {"store": None, "members": 7},
        {"members": 7, "pending": True},
        {"members": [["rail-0"]], "pending": True},
        {"members": None},
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_record_that_is_not_as_it_should_be_stops_no_delete_and_no_gc(
    damage: dict[str, Any], whole: bool, tmp_path: Path, free_paths: None
) -> None:
    """Its checksum is right: it was written so."""
    for place in MAKERS["file"](tmp_path):
        rails = Rails(place)
        rails.add(0)
        ((who, record),) = rails.records.of_groups("ipam")
        store_ref = rails.store_ref
        rails.records.write(who, "ipam", {**(record if whole else {}), **damage})
        rails.call("GC", 0, config={"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net0"}]})
        rails.delete(0)
        assert "10.0.0.1" not in rails.all_leased(store_ref)


def test_what_is_attached_while_a_release_is_pending_is_released_with_its_own_rails(rails: Rails) -> None:
    """The rails that were attached before are not: their DELs have come."""
    rails.add(0)
    who, record = rails.records.of_groups("ipam")[0]
    rails.records.write(who, "ipam", {**record, "pending": True})  # as a DEL leaves it that reached no server
    store_ref = rails.store_ref
    rails.add(1)  # where a release may be on its way it gets another index
    rails.delete(1)
    assert rails.all_leased(store_ref) == {}
    assert rails.records.of_groups("ipam") == []
