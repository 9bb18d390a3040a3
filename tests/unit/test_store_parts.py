"""The parts that stores share: a lease as JSON, the pauses between attempts, connections to real sockets on loopback."""

import json
import socket
import time

import pytest

from cni import VERSION
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.stores import http
from ipam.stores.addresslease import _values
from ipam.stores.base import Pauses
from ipam.stores.ippool.objects import ANNOTATION, COOLING, IPPool, Reservation
from ipam.stores.served import from_json, to_json
from tests.etcd import free_ports

LEASE = Lease(
    Want("blue-10.0.0.0-24", 4, 10 << 24 | 7, "blue"),
    Owner(Attachment("rdma-net", "c1", "net1"), ("team", "web-0", "u1"), "n1", "boot", "/run/netns/a", 5, "machine"),
)


def test_a_lease_is_the_same_after_it_was_written_as_json() -> None:
    again = from_json(to_json(LEASE))
    assert {name: getattr(again, name) for name in Lease.__slots__} == {n: getattr(LEASE, n) for n in Lease.__slots__}


@pytest.mark.parametrize("key", ["pool", "address", "scope", "network", "containerID", "ifname", "pod", "sequence"])
@pytest.mark.parametrize("wrong", [None, 7.5, {}, "absent"])
def test_a_lease_without_a_member_or_with_one_of_a_wrong_type_is_refused(key: str, wrong: object) -> None:
    document = {**to_json(LEASE), key: wrong}
    if wrong == "absent":
        del document[key]
    if (key, wrong) == ("scope", None):
        assert from_json(document).scope is None
        return
    with pytest.raises(ValueError):
        from_json(document)


@pytest.mark.parametrize(
    "name", ["", "foo", "10.0.0", "10.0.0.x", "1-2", "x.net.blue", "10.0.0.256", "-", "a-b.pool.c"]
)
def test_the_name_of_an_object_of_another_program_takes_no_address(name: str) -> None:
    assert _values(4, ["10.0.0.7", name, "10.0.0.8.net.blue"]) == {10 << 24 | 7, 10 << 24 | 8}


@pytest.mark.parametrize("offset", ["9" * 5000, "x", "-1", "", "\u0661"])
def test_an_offset_of_another_program_cools_nothing(offset: str) -> None:
    kept = json.dumps({offset: [1010, "a"], "7": [1010, "b"]})
    metadata = {"name": "10.0.0.0-24", "annotations": {COOLING: kept}}
    pool = IPPool({"metadata": metadata, "spec": {"range": "10.0.0.0/24"}}, 0)
    assert [int(found) for found in pool.cooling(1000)] == [7]


@pytest.mark.parametrize(
    "note", ["", "nonsense", "[]", "7", '{"network": 7}', '{"network": "\\ud800"}', "[" * 5000, '{"sequence": -1}']
)
def test_a_reservation_with_a_note_of_another_program_tells_what_its_name_tells(note: str) -> None:
    reservation = Reservation({"metadata": {"name": "10.0.0.7", "annotations": {ANNOTATION: note}}, "spec": {}})
    assert (reservation.address, reservation.lease.network) == ((4, 10 << 24 | 7), "")


def test_pauses_double_and_shrink_with_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    pauses = Pauses(110.0, first=1.0, longest=2.0)
    for left, longest in ((10.0, 1.0), (10.0, 2.0), (5.0, 2.0)):
        now[0] = 110.0 - left
        assert pauses.wait()
        assert longest * left / 10 / 2 <= slept[-1] <= 1.5 * longest * left / 10
    now[0] = 108.5
    assert not pauses.wait(), "no time is left for another attempt"
    assert len(slept) == 3


def test_places_that_refuse_are_given_up_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(http.Refused) as refused:
        http.dial([("127.0.0.1", port) for port in free_ports(2)], 20)
    assert time.monotonic() - began < 10  # it would wait for the whole time
    assert refused.value.reasons == ["Connection refused", "Connection refused"]


def test_a_request_says_who_asks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, connected = http.dial([server.getsockname()], 20)
        connection = http.Connection(connected, "localhost", None, 0)
        with server.accept()[0] as peer:
            with pytest.raises(http.ConnectionLost):  # nobody answers
                connection.request("GET", "/", "", b"", time.monotonic() + 0.1)
            assert f"\r\nUser-Agent: railcni/{VERSION}\r\n".encode() in peer.recv(1000)
