"""Node slices: what a cluster of whereabouts with `node_slice_size` has is read, kept to and shared.

whereabouts #518 #666. The objects are those of v0.9.4: see its pkg/node-controller.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import InvalidConfig, NotAvailable, TryAgainLater
from ipam.ranges import Range
from ipam.stores import base
from ipam.stores.ippool import locks
from tests.stores.kubernetes_api import ApiServer
from tests.stores.test_kubernetes_store import POOL, POOLS, RESERVATIONS, TEN, Cluster, divided, message

SLICES = "nodeslicepools"
SLICED = {"node_slice_size": "/26"}


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    return Cluster(server, tmp_path)


def call(cluster: Cluster, verb: str, container: str = "c1", node: str = "node-1", **ipam: Any) -> list[str]:
    more = {key: ipam.pop(key) for key in ("args", "pod", "prevResult", "cni.dev/valid-attachments") if key in ipam}
    return cluster.call(verb, container, SLICED | ipam, node=node, environ={"NODENAME": node}, **more)


def holders(cluster: Cluster, name: str = "rdma-net") -> list[str]:
    return [entry["nodeName"] for entry in cluster.server.status(SLICES, name)["allocations"]]


def test_a_node_gives_addresses_of_its_slice_from_a_pool_of_its_own(cluster: Cluster) -> None:
    divided(cluster, "node-2", "node-1")
    assert call(cluster, "ADD") == ["10.0.0.65/24"]
    assert cluster.server.spec(POOLS, "node-1-10.0.0.64-26") == {
        "range": "10.0.0.64/26",
        "allocations": {"1": {"id": "c1", "podref": "ns/c1", "ifname": "net1"}},
    }
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.65"]
    assert call(cluster, "ADD", "c2", "node-2") == ["10.0.0.1/24"]
    previous = {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.65/24"}]}
    call(cluster, "CHECK", prevResult=previous)
    call(cluster, "DEL")
    call(cluster, "DEL", "c2", "node-2")
    assert cluster.allocations("node-1-10.0.0.64-26") == cluster.allocations("node-2-10.0.0.0-26") == {}
    assert cluster.server.names(RESERVATIONS) == []


def test_a_network_name_names_the_slices_and_stands_before_the_pool(cluster: Cluster) -> None:
    divided(cluster, "node-1", name="blue")
    assert call(cluster, "ADD", network_name="blue") == ["10.0.0.1/24"]
    assert cluster.server.names(POOLS) == ["blue-node-1-10.0.0.0-26"]
    assert cluster.server.names(RESERVATIONS) == ["blue-10.0.0.1"]


def test_windows_excludes_and_gateway_hold_inside_a_slice(cluster: Cluster) -> None:
    """whereabouts #666: Go forgets all of them."""
    divided(cluster, "node-2", "node-1")
    block = {"range_start": "10.0.0.66", "range_end": "10.0.0.70", "exclude": ["10.0.0.67/32", "10.0.0.69"]}
    given = [call(cluster, "ADD", f"c{i}", **block, gateway="10.0.0.66") for i in range(2)]
    assert given == [["10.0.0.68/24"], ["10.0.0.70/24"]]
    with pytest.raises(TryAgainLater, match="pool node-1-10.0.0.64-26 is exhausted: 2 of the 2"):
        call(cluster, "ADD", "c3", **block, gateway="10.0.0.66")


def test_a_node_without_a_slice_takes_the_first_free_one(cluster: Cluster) -> None:
    divided(cluster, "node-2")
    call(cluster, "STATUS")
    assert holders(cluster) == ["node-2", "", "", ""]
    assert call(cluster, "ADD") == ["10.0.0.65/24"]
    assert call(cluster, "ADD", "c2") == ["10.0.0.66/24"]
    assert holders(cluster) == ["node-2", "node-1", "", ""]


def test_nodes_that_take_a_slice_at_once_take_one_each(cluster: Cluster) -> None:
    """whereabouts #558: with several networks and slices the scaling stalls."""
    divided(cluster)
    nodes = [f"node-{i}" for i in range(4)]
    with ThreadPoolExecutor(4) as workers:
        given = list(workers.map(lambda node: call(cluster, "ADD", node, node), nodes))
    assert sorted(given) == [["10.0.0.1/24"], ["10.0.0.129/24"], ["10.0.0.193/24"], ["10.0.0.65/24"]]
    assert sorted(holders(cluster)) == nodes


def test_a_slice_that_became_another_s_meanwhile_is_not_taken(cluster: Cluster) -> None:
    divided(cluster)
    done: list[int] = []

    def meddle(method: str, resource: str, number: int) -> Any:
        if (method, resource) == ("PATCH", SLICES) and not done:
            done.append(number)
            return lambda: divided(cluster, "node-9")
        return None

    cluster.server.faults = meddle
    assert call(cluster, "ADD") == ["10.0.0.65/24"]
    assert holders(cluster)[:2] == ["node-9", "node-1"]


def test_a_free_slice_whose_addresses_are_in_use_is_not_taken(cluster: Cluster) -> None:
    """Of a node that was deleted and whose pods still run; and of the range as it was before it was divided."""
    divided(cluster)
    entry = {"id": "x", "podref": "ns/x", "ifname": "net1"}
    former = {"range": "10.0.0.0/26", "allocations": {"5": entry}}
    cluster.server.put(POOLS, "kube-system", "gone-10.0.0.0-26", former)
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {"70": entry}})
    assert call(cluster, "ADD") == ["10.0.0.129/24"]
    assert holders(cluster) == ["", "", "node-1", ""]
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {"70": entry, "200": entry}})
    with pytest.raises(TryAgainLater, match="no slice for node node-3: of 4 3 are free but have addresses in use"):
        call(cluster, "ADD", "c3", "node-3")


def test_no_slice_is_left(cluster: Cluster) -> None:
    divided(cluster, "a", "b", "c", "d")
    said = "NodeSlicePool rdma-net has no slice for node node-1: of 4 nodes have them all"
    with pytest.raises(TryAgainLater, match=said):
        call(cluster, "ADD")
    with pytest.raises(NotAvailable, match="no slice"):
        call(cluster, "STATUS")
    call(cluster, "DEL")
    assert cluster.recorded() == {}


def test_a_missing_node_slice_pool_is_named_with_who_makes_it(cluster: Cluster) -> None:
    """whereabouts #518: "fast ranges not working out of the box": what is missing is not said."""
    said = message(cluster, ipam=SLICED)
    assert said.startswith("11 there is no NodeSlicePool rdma-net in namespace kube-system")
    assert "node-slice-controller" in said
    call(cluster, "DEL")
    assert cluster.server.names(POOLS) == []


def test_a_slice_of_another_range_is_refused(cluster: Cluster) -> None:
    """whereabouts #498: slices stay those of the former range when the NAD has changed."""
    divided(cluster, "node-1")
    with pytest.raises(InvalidConfig, match='slice "10.0.0.0/26" of NodeSlicePool rdma-net is no part of ipam.range'):
        call(cluster, "ADD", range="10.1.0.0/24")
    with pytest.raises(InvalidConfig, match="divides one range"):
        call(cluster, "ADD", ipRanges=[{"range": "fd00::/64"}])


def test_a_requested_address_of_another_node_s_slice_is_refused(cluster: Cluster) -> None:
    divided(cluster, "node-2", "node-1")
    assert call(cluster, "ADD", args=";IP=10.0.0.77") == ["10.0.0.77/24"]
    with pytest.raises(InvalidConfig, match="10.0.0.7 is not of slice 10.0.0.64/26"):
        call(cluster, "ADD", "c2", args=";IP=10.0.0.7")


@pytest.mark.parametrize("made_away_with", [True, False])
def test_what_go_leased_from_a_slice_is_released(cluster: Cluster, made_away_with: bool) -> None:
    """Also when the NodeSlicePool went with its NAD."""
    divided(cluster, "node-1", name="blue")
    entry = {"id": "go", "podref": "ns/a", "ifname": "net1"}
    spec = {"range": "10.0.0.0/26", "allocations": {"5": entry}}
    cluster.server.put(POOLS, "kube-system", "blue-node-1-10.0.0.0-26", spec)
    cluster.server.put(RESERVATIONS, "kube-system", "blue-10.0.0.5", {"podref": "ns/a", "ifname": "net1"})
    if made_away_with:
        cluster.server.remove(SLICES, "blue")
    call(cluster, "DEL", "go", network_name="blue", pod="a")
    assert cluster.allocations("blue-node-1-10.0.0.0-26") == {}
    assert cluster.server.names(RESERVATIONS) == []


def test_a_node_that_lost_its_slice_still_frees_what_it_gave_of_it(cluster: Cluster) -> None:
    divided(cluster, "node-1")
    call(cluster, "ADD")
    cluster.server.remove(SLICES, "rdma-net")
    call(cluster, "DEL")
    assert cluster.allocations("node-1-10.0.0.0-26") == cluster.recorded() == {}
    divided(cluster, "node-1")
    call(cluster, "ADD")
    divided(cluster, "node-2", "node-1")
    call(cluster, "GC", "", **{"cni.dev/valid-attachments": []})
    assert cluster.allocations("node-1-10.0.0.0-26") == cluster.recorded() == {}


def test_a_retry_after_the_slice_has_changed_moves_the_lease(cluster: Cluster) -> None:
    divided(cluster, "node-1")
    call(cluster, "ADD")
    divided(cluster, "node-2", "node-1")
    assert call(cluster, "ADD") == ["10.0.0.65/24"]
    assert cluster.allocations("node-1-10.0.0.0-26") == {}
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.65"]


@pytest.mark.well("it counts the requests of a well server")
def test_slices_cost_an_add_one_request_and_a_delete_none(cluster: Cluster) -> None:
    divided(cluster, "node-1")
    call(cluster, "ADD", "first")
    cluster.asked()
    call(cluster, "ADD")
    assert len(cluster.asked()) == 4
    call(cluster, "DEL")
    assert len(cluster.asked()) == 4


@pytest.mark.well("its server is closed")
def test_a_delete_without_a_record_tries_no_refused_connection_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server.close()
    monkeypatch.setattr(base.Pauses, "wait", lambda *_: pytest.fail("it waits for another attempt"))
    call(cluster, "DEL")


def test_a_part_of_a_range_keeps_its_window_and_its_prefix_length() -> None:
    """whereabouts #504: addresses had the slice's prefix length, not the network's."""
    whole = Range(4, TEN, 24, TEN + 10, TEN + 70, [(TEN + 20, TEN + 66)])
    part = whole.part(4, TEN + 64, 26)
    assert (part.cidr, part.prefix, part.spans()) == ("10.0.0.64/26", 24, [(TEN + 67, TEN + 70)])
    assert whole.part(4, TEN, 32).size() == 0
    assert Range(4, TEN, 24).part(4, TEN, 26).spans() == [(TEN + 1, TEN + 62)]
    for outside in ((4, TEN, 23), (4, TEN + 256, 26), (6, TEN, 126)):
        with pytest.raises(ValueError, match="not inside"):
            whole.part(*outside)
