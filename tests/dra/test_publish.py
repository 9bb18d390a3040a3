"""The slices at an API server: written when the devices change, whole, and only then."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.resources.choose import Offer, Resource
from cni.resources.dra import slices
from cni.resources.dra.publish import Publisher
from cni.resources.dra.slices import Device
from cni.resources.models import Shared
from cni.shared.spec.errors import CniError
from tests.stores.kubernetes_api import ApiServer


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.core.add_node("node-1")
    yield server
    server.close()


@pytest.fixture
def publisher(api: ApiServer, tmp_path: Path) -> Publisher:
    return Publisher(api.kubeconfig(tmp_path), "node-1")


def devices(count: int, healthy: bool = True) -> list[Device]:
    found = []
    for number in range(count):
        document = {"name": f"d{number}", "attributes": {"healthy": {"bool": healthy}}}
        shared = {
            "allowMultipleAllocations": True,
            "capacity": {"gids": slices._capacity(Offer("x", ("a", "b"), gids=2))["gids"]},
        }
        found.append(Device(Resource("rdma/a"), Offer(f"d{number}", ()), document | shared))
    return found


def pool(api: ApiServer) -> list[tuple[str, int, int, int]]:
    """Of each slice its name, generation, count of slices, number of devices."""
    return [
        (
            one["metadata"]["name"],
            one["spec"]["pool"]["generation"],
            one["spec"]["pool"]["resourceSliceCount"],
            len(one["spec"]["devices"]),
        )
        for one in api.core.named("resourceslices")
    ]


def changes(api: ApiServer) -> int:
    return sum(method != "GET" for method, _, _ in api.seen)


def test_a_pool_is_written_once_and_owned_by_its_node(api: ApiServer, publisher: Publisher) -> None:
    assert publisher.publish(devices(3))
    assert pool(api) == [("node-1-railcni.io-0", 1, 1, 3)]
    (slice,) = api.core.named("resourceslices")
    node = api.core.named("nodes")[0]["metadata"]
    (owner,) = slice["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node["uid"]}
    before = changes(api)
    assert not publisher.publish(devices(3))
    assert not Publisher(publisher._kubeconfig, "node-1").publish(devices(3))  # another start of the driver
    assert changes(api) == before


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (3, 2, [(0, 2, 1, 2)]),
        (100, 200, [(0, 2, 2, 128), (1, 2, 2, 72)]),
        (300, 130, [(0, 2, 2, 128), (1, 2, 2, 2)]),
        (300, 0, []),
    ],
)
def test_a_change_gives_all_slices_the_next_generation(
    api: ApiServer, publisher: Publisher, before: int, after: int, wanted: list[tuple[int, ...]]
) -> None:
    publisher.publish(devices(before))
    assert publisher.publish(devices(after))
    assert pool(api) == [(f"node-1-railcni.io-{number}", *rest) for number, *rest in wanted]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_slice_that_another_deletes_comes_back(api: ApiServer, publisher: Publisher, lost: int) -> None:
    publisher.publish(devices(200))
    del api.core.objects["resourceslices", "", f"node-1-railcni.io-{lost}"]
    assert publisher.publish(devices(200))
    assert [(generation, count) for _, generation, count, _ in pool(api)] == [(2, 2), (2, 2)]


def test_slices_that_kubelet_deletes_while_they_are_written_come_back(api: ApiServer, publisher: Publisher) -> None:
    """As a kubelet does that starts at the same time."""

    def kubelet(method: str, resource: str, number: int) -> None:
        if method == "GET" and resource == "resourceslices" and changes(api):
            for key in [key for key in api.core.objects if key[0] == "resourceslices"]:
                del api.core.objects[key]

    api.faults = kubelet
    assert publisher.publish(devices(2))
    assert (pool(api), publisher.lacks) == ([], [])
    api.faults = lambda method, resource, number: None
    assert publisher.publish(devices(2))
    assert [count for *_, count in pool(api)] == [2]


def test_a_change_that_was_killed_half_way_is_completed(api: ApiServer, publisher: Publisher) -> None:
    publisher.publish(devices(200))
    api.faults = lambda method, resource, number: ((500, {}) if method == "PATCH" and changes(api) > 3 else None)
    with pytest.raises(CniError):
        publisher.publish(devices(200, healthy=False))
    api.faults = lambda method, resource, number: None
    assert len({generation for _, generation, _, _ in pool(api)}) == 2
    assert Publisher(publisher._kubeconfig, "node-1").publish(devices(200, healthy=False))
    assert [generation for _, generation, _, _ in pool(api)] == [3, 3]


def test_slices_of_other_nodes_and_drivers_are_left_alone(api: ApiServer, publisher: Publisher) -> None:
    for name, node, driver in (("a", "node-2", "railcni.io"), ("b", "node-1", "dra.net")):
        spec = {"nodeName": node, "driver": driver, "devices": [], "pool": {}}
        api.core.create("resourceslices", "", {"metadata": {"name": name}, "spec": spec})
    publisher.publish(devices(1))
    publisher.publish([])
    assert [name for name, *_ in [(one["metadata"]["name"],) for one in api.core.named("resourceslices")]] == ["a", "b"]


def test_what_an_older_server_drops_is_told_until_it_keeps_it(api: ApiServer, publisher: Publisher) -> None:
    """Kubernetes 1.34 drops the fields; a publication that changes nothing is none all the same."""
    api.core.shares = api.core.extends = False
    for name in ("a", "b"):  # the second is of a resource that this node does not have
        document = slices.device_class(Shared(resourceName=name, rdmaHcaMax=9, devices=["ens1f0"]))
        api.core.create("deviceclasses", "", document)
    assert publisher.publish(devices(2))
    assert not publisher.publish(devices(2))
    shared, extended = publisher.lacks
    assert "keeps no allowMultipleAllocations, so a shared NIC is given to one claim at a time" in shared
    assert "DeviceClass rdma-a has no extendedResourceName, so no pod that asks for rdma/a gets a device" in extended
    api.core.shares = True
    api.core.objects["deviceclasses", "", "rdma-a"]["spec"]["extendedResourceName"] = "rdma/a"
    assert publisher.publish(devices(2, healthy=False))
    assert publisher.lacks == []


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda api: api.dra.clear(), "does not know resource.k8s.io/v1: it needs Kubernetes 1.34 or newer"),
        (lambda api: api.core.objects.clear(), "has no Node node-1: name this node with --node"),
        (lambda api: api.forbidden.add(("create", "resourceslices")), "forbids to create resourceslices"),
        (lambda api: api.forbidden.add(("list", "resourceslices")), "forbids to list resourceslices"),
        (lambda api: api.forbidden.add(("get", "nodes")), "forbids to get nodes"),
        (lambda api: api.forbidden.add(("list", "deviceclasses")), "forbids to list deviceclasses"),
    ],
)
def test_a_refusal_says_what_to_do(api: ApiServer, publisher: Publisher, break_it: Any, said: str) -> None:
    break_it(api)
    with pytest.raises(CniError) as refused:
        publisher.publish(devices(1))
    assert said in refused.value.msg


def test_what_is_published_is_json_that_the_server_keeps_as_it_is(api: ApiServer, publisher: Publisher) -> None:
    publisher.publish(devices(2))
    (slice,) = api.core.named("resourceslices")
    assert slice["spec"] == json.loads(json.dumps(slices.documents(devices(2), "node-1", 1)[0]["spec"]))
