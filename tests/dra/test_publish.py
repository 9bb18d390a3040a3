"""What is written at an API server: slices when the devices change, whole, and `status.devices` of claims by the records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.resources.choose import Offer, Resource
from cni.resources.dra import slices
from cni.resources.dra.publish import Publisher, Statuses
from cni.resources.dra.slices import Device
from cni.resources.models import Shared
from cni.shared.records import Records
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from tests.dra.kubelet import result
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
        gids = slices._capacity(Offer("x", ("a", "b"), gids=2))["gids"]
        document = {"name": f"d{number}", "attributes": {"healthy": {"bool": healthy}}, "capacity": {"gids": gids}}
        found.append(Device(Resource("rdma/a"), Offer(f"d{number}", ()), document | {"allowMultipleAllocations": True}))
    return found


def pool(api: ApiServer) -> list[tuple[str, int, int, int]]:
    """Of each slice its name, generation, count of slices, number of devices."""
    found = []
    for one in api.core.named("resourceslices"):
        pool, devices = one["spec"]["pool"], one["spec"]["devices"]
        found.append((one["metadata"]["name"], pool["generation"], pool["resourceSliceCount"], len(devices)))
    return found


def changes(api: ApiServer) -> int:
    return sum(method != "GET" for method, _, _ in api.seen)


def test_a_pool_is_written_once_and_owned_by_its_node(api: ApiServer, publisher: Publisher) -> None:
    assert publisher.publish(devices(3))
    assert pool(api) == [("node-1-railcni.io-0", 1, 1, 3)]
    (slice,) = api.core.named("resourceslices")
    assert slice["spec"] == json.loads(json.dumps(slices.documents(devices(3), "node-1", 1)[0]["spec"]))
    node = api.core.named("nodes")[0]["metadata"]
    (owner,) = slice["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node["uid"]}
    before = changes(api)
    assert not publisher.publish(devices(3))
    assert not Publisher(publisher._kubeconfig, "node-1").publish(devices(3))  # another start of the driver
    assert changes(api) == before


@pytest.mark.parametrize(("before", "after", "wanted"), [
    (3, 2, [(0, 2, 1, 2)]),
    (100, 200, [(0, 2, 2, 128), (1, 2, 2, 72)]),
    (300, 130, [(0, 2, 2, 128), (1, 2, 2, 2)]),
    (300, 0, []),
])  # fmt: skip
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
    assert [one["metadata"]["name"] for one in api.core.named("resourceslices")] == ["a", "b"]


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


@pytest.mark.parametrize(("break_it", "said"), [
    (lambda api: api.dra.clear(), "does not know resource.k8s.io/v1: it needs Kubernetes 1.34 or newer"),
    (lambda api: api.core.objects.clear(), "has no Node node-1: name this node with --node"),
    (lambda api: api.forbidden.add(("create", "resourceslices")), "forbids to create resourceslices"),
    (lambda api: api.forbidden.add(("list", "resourceslices")), "forbids to list resourceslices"),
    (lambda api: api.forbidden.add(("get", "nodes")), "forbids to get nodes"),
    (lambda api: api.forbidden.add(("list", "deviceclasses")), "forbids to list deviceclasses"),
])  # fmt: skip
def test_a_refusal_says_what_to_do(api: ApiServer, publisher: Publisher, break_it: Any, said: str) -> None:
    break_it(api)
    with pytest.raises(CniError) as refused:
        publisher.publish(devices(1))
    assert said in refused.value.msg


NIC, VF = "0000:30:00.0", "0000:31:00.1"
MAC = "02:00:00:00:00:01"
SEALED = {"driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}


class Scene:
    """An API server with the claim team/c of the devices `nic` and `vf`, reserved for the pod u1, and the node's records."""

    def __init__(self, folder: Path, api: ApiServer) -> None:
        self.api = api
        self.state = folder / "state"
        self.records = Records(str(self.state))
        self.statuses = Statuses(api.kubeconfig(folder), str(self.state))
        results = [result("nic", share="share-1"), result("vf"), SEALED | {"request": "gpu"}]
        uid = api.core.add_claim("team", "c", *results)
        self.status["devices"] = [SEALED]
        devices = [
            {"pool": "node-1", "device": name, "function": function, "share": share}
            for name, function, share in (("nic", NIC, "share-1"), ("vf", VF, ""))
        ]
        self.claim = {"uid": uid, "namespace": "team", "name": "c", "pods": ["u1"], "devices": devices}

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.core.objects["resourceclaims", "team", "c"]["status"]
        return status

    def attach(
        self,
        ifname: str = "net1",
        link: dict[str, Any] | None = None,
        addresses: tuple[str, ...] = ("192.168.111.1/24",),
        pod: str = "u1",
        **config: Any,
    ) -> Attachment:
        """A record as after an ADD of macvlan on the NIC."""
        attachment = Attachment("rdma-net", f"c-{pod}", ifname)
        of_pod = {"netns": "/run/netns/x", "pod": ["team", f"pod-{pod}", pod]}
        config = config or {"runtimeConfig": {"deviceID": NIC}}
        made = {"created": 1_700_000_000_000_000_000, "config": json.dumps(config), "link": link or {"mac": MAC}}
        self.records.write(attachment, "link", {**of_pod, **made})
        if addresses:
            self.records.write(attachment, "ipam", {**of_pod, "addresses": [*addresses]})
        return attachment

    def tell(self) -> dict[str, Any]:
        """The networkData of each device of railcni.io after a look."""
        self.statuses.tell([self.claim])
        devices = self.status.get("devices", [])
        assert devices[0] == SEALED
        return {one["device"]: one["networkData"] for one in devices[1:]}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    api = ApiServer()
    yield Scene(tmp_path, api)
    api.close()


DATA = {"interfaceName": "net1", "hardwareAddress": MAC, "ips": ["192.168.111.1/24"]}
MOVED = {"pci": VF, "device": {"mac": MAC}}


@pytest.mark.parametrize(("given", "wanted"), [
    ({}, {"nic": DATA}),
    ({"deviceID": NIC, "type": "macvlan"}, {"nic": DATA}),
    ({"link": MOVED}, {"vf": DATA}),
    ({"link": MOVED, "addresses": ()}, {"vf": {"interfaceName": "net1", "hardwareAddress": MAC}}),
    ({"link": {"pci": VF, "device": {}}, "addresses": ()}, {"vf": {"interfaceName": "net1"}}),
    ({"addresses": tuple(f"192.168.111.{n}/24" for n in range(1, 20))},
     {"nic": DATA | {"ips": [f"192.168.111.{n}/24" for n in range(1, 17)]}}),
    ({"pod": "u2"}, {}),
    ({"runtimeConfig": {"deviceID": "0000:99:00.0"}}, {}),
    ({"type": "macvlan", "master": "ens1f0"}, {}),
])  # fmt: skip
def test_the_claim_shows_what_the_add_gave_to_its_pod_on_its_device(
    scene: Scene, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    scene.attach(**given)
    assert scene.tell() == wanted
    for one in scene.status["devices"][1:]:
        (condition,) = one["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Attached")
        assert condition["lastTransitionTime"] == "2023-11-14T22:13:20Z"
        assert one.get("shareID") == {"nic": "share-1"}.get(one["device"])


def test_a_rail_with_the_same_index_has_its_part_of_the_addresses_of_its_group(scene: Scene) -> None:
    ranges = ["192.168.0.0/24", ["192.168.1.0/24", "fd00:1::/64"], "192.168.2.0/24"]
    rail = {"group": "g", "addressing": "same-index", "ranges": ranges}
    addresses = ["192.168.0.5/24", "192.168.1.5/24", "fd00:1::5/64", "192.168.2.5/24"]
    scene.attach("net1", addresses=(), runtimeConfig={"deviceID": NIC}, rail=rail)
    scene.attach("net2", link=MOVED, addresses=(), rail=rail)
    group = Attachment("@g", "c-u1", "rails of g")
    members = [["rdma-net", "net1", 1, 7], ["rdma-net", "net2", 2, 7]]
    scene.records.write(group, "ipam", {"addresses": addresses, "members": members, "pending": False})
    found = scene.tell()
    assert found["nic"]["ips"] == ["192.168.1.5/24", "fd00:1::5/64"]
    assert found["vf"]["ips"] == ["192.168.2.5/24"]


def test_links_of_one_nic_that_a_claim_has_twice_are_told_in_order(scene: Scene) -> None:
    first = scene.claim["devices"][0]
    scene.status["allocation"]["devices"]["results"].append(result("nic", share="share-2"))
    scene.claim["devices"] = [first, first | {"share": "share-2"}]
    scene.attach("net2", addresses=("192.168.111.2/24",))
    scene.attach("net1")
    scene.tell()
    shown = [(one["shareID"], one["networkData"]["interfaceName"]) for one in scene.status["devices"][1:]]
    assert shown == [("share-1", "net1"), ("share-2", "net2")]


def test_a_status_follows_the_attachment_and_waits_for_an_add_that_runs(scene: Scene) -> None:
    attachment = scene.attach()
    with Records(str(scene.state)).locked(attachment, "link"):
        assert scene.tell() == {}
    assert scene.tell() == {"nic": DATA}
    scene.attach(addresses=("192.168.111.9/24",))  # the sandbox was made anew
    assert scene.tell()["nic"]["ips"] == ["192.168.111.9/24"]
    for part in ("link", "ipam"):
        scene.records.remove(attachment, part)
    assert scene.tell() == {}


def test_the_server_is_asked_only_after_a_change(scene: Scene) -> None:
    scene.tell()
    assert scene.api.seen == []
    scene.attach()
    scene.tell()
    before = len(scene.api.seen)
    scene.tell()
    scene.attach(pod="u2")
    scene.tell()
    assert len(scene.api.seen) == before == 2


@pytest.mark.parametrize(
    "changed",
    [lambda status: status.pop("allocation"), lambda status: status["devices"].append(SEALED | {"pool": "q"})],
)
def test_a_status_that_cannot_be_written_is_tried_again(scene: Scene, changed: Any) -> None:
    """As while the claim is deallocated."""
    scene.attach()
    former = json.loads(json.dumps(scene.status))
    changed(scene.status)
    with pytest.raises(CniError):
        scene.statuses.tell([scene.claim])
    scene.api.core.objects["resourceclaims", "team", "c"]["status"] = former
    assert scene.tell() == {"nic": DATA}


def test_a_claim_that_is_gone_or_another_one_is_left_alone(scene: Scene) -> None:
    scene.attach()
    scene.claim["uid"] = "another"
    assert scene.tell() == {}
    del scene.api.core.objects["resourceclaims", "team", "c"]
    scene.attach(addresses=())
    scene.statuses.tell([scene.claim])


def test_a_claim_that_the_server_refuses_keeps_no_other_from_being_told(scene: Scene) -> None:
    uid = scene.api.core.add_claim("team", "d", result("vf"))
    refused = {"uid": uid, "namespace": "team", "name": "d", "pods": ["u2"], "devices": scene.claim["devices"][1:]}
    scene.attach(pod="u2", link=MOVED, addresses=("192.168.111.2/24",) * 2)
    scene.attach()
    with pytest.raises(CniError, match="resourceclaims/d"):
        scene.statuses.tell([refused, scene.claim])
    assert scene.status["devices"][1]["networkData"] == DATA
