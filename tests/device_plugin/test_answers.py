"""What kubelet, the runtime and Multus are answered."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.resources.choose import Offer, Resource
from cni.resources.device_plugin import answers

UVERBS = [(f"/dev/infiniband/uverbs{n}", f"/dev/infiniband/uverbs{n}") for n in range(2)]
CM = ("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm")


def nic(number: int, devices: int, fault: str = "") -> Offer:
    name = f"0000:{0x30 + number:02x}:00.0"
    return Offer(name, tuple(f"{name}-{n}" for n in range(devices)), (UVERBS[number % 2], CM), (number,), fault, name)


def function(number: int, group: str = "0000:30:00.0") -> Offer:
    name = f"0000:30:00.{number}"
    return Offer(name, (name,), group=group, info={"generic": {"deviceID": name}}, file={"type": "pci"})


SHARED = Resource("rdma/hca", (nic(0, 3), nic(1, 2, "mlx5_1 port 1 is DOWN")))
VFS = Resource("my-company.com/vf.a", (function(1), function(2)), is_exclusive=True)


def test_the_list_has_health_and_numa_node_of_each_device() -> None:
    devices = [(d.ID, d.health, [n.ID for n in d.topology.nodes]) for d in answers.listing(SHARED).devices]
    assert devices[0] == ("0000:30:00.0-0", "Healthy", [0])
    assert devices[3:] == [(f"0000:31:00.0-{n}", "Unhealthy", [1]) for n in range(2)]
    assert not answers.listing(VFS).devices[0].HasField("topology")


def test_a_container_gets_the_nodes_of_its_devices_each_once() -> None:
    answer = answers.allocation(SHARED, ["0000:30:00.0-2", "0000:30:00.0-0"], cdi=False)
    paths = [(d.container_path, d.host_path, d.permissions) for d in answer.devices]
    assert paths == [(*UVERBS[0], "rw"), (*CM, "rw")]
    assert not answer.envs and not answer.annotations and not answer.cdi_devices
    both = answers.allocation(SHARED, ["0000:30:00.0-2", "0000:31:00.0-0"], cdi=False)
    assert [d.host_path for d in both.devices] == [UVERBS[0][1], CM[1], UVERBS[1][1]]


def test_the_variables_of_an_exclusive_function_have_gos_names() -> None:
    answer = answers.allocation(VFS, ["0000:30:00.2", "0000:30:00.1"], cdi=False)
    assert set(answer.envs) == {"PCIDEVICE_MY-COMPANY_COM_VF_A", "PCIDEVICE_MY-COMPANY_COM_VF_A_INFO"}
    assert answer.envs["PCIDEVICE_MY-COMPANY_COM_VF_A"] == "0000:30:00.2,0000:30:00.1"
    info = json.loads(answer.envs["PCIDEVICE_MY-COMPANY_COM_VF_A_INFO"])
    assert info == {f"0000:30:00.{n}": {"generic": {"deviceID": f"0000:30:00.{n}"}} for n in (1, 2)}


def test_with_cdi_the_runtime_reads_the_nodes_from_the_specification() -> None:
    answer = answers.allocation(SHARED, ["0000:30:00.0-2", "0000:31:00.0-0"], cdi=True)
    names = ["rdma/hca=0000:30:00.0", "rdma/hca=0000:31:00.0"]
    assert [d.name for d in answer.cdi_devices] == names
    assert dict(answer.annotations) == {"cdi.k8s.io/rdma_hca": ",".join(names)}
    assert not answer.devices
    document = answers.cdi_document(SHARED)
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "rdma/hca")
    assert [d["name"] for d in document["devices"]] == ["0000:30:00.0", "0000:31:00.0"]
    nodes = document["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes[0] == {"path": UVERBS[0][0], "hostPath": UVERBS[0][1], "permissions": "rw"}


def test_a_function_without_device_nodes_is_left_out_of_cdi_which_takes_no_empty_device() -> None:
    assert answers.cdi_document(VFS)["devices"] == []
    answer = answers.allocation(VFS, ["0000:30:00.2"], cdi=True)
    assert not answer.cdi_devices and not answer.annotations
    assert answer.envs["PCIDEVICE_MY-COMPANY_COM_VF_A"] == "0000:30:00.2"


@pytest.mark.parametrize(("size", "needed", "wanted"), [
    (1, [], ["0000:30:00.0"]),  # the NIC with the most devices that are free
    (2, [], ["0000:30:00.0", "0000:31:00.0"]),
    (3, [], ["0000:30:00.0", "0000:30:00.0", "0000:31:00.0"]),
    (2, ["0000:30:00.0-2"], ["0000:30:00.0", "0000:31:00.0"]),
    (9, [], ["0000:30:00.0"] * 3 + ["0000:31:00.0"] * 2),
])  # fmt: skip
def test_a_container_is_given_devices_of_as_many_nics_as_there_are(
    size: int, needed: list[str], wanted: list[str]
) -> None:
    available = [one for offer in SHARED.offers for one in offer.ids]
    chosen = answers.preferred(SHARED, available, needed, size)
    assert sorted(one.rpartition("-")[0] for one in chosen) == wanted
    assert set(needed) <= set(chosen)


@given(st.sets(st.integers(0, 19)), st.data())
def test_preferred_devices_are_available_ones_each_once(numbers: set[int], data: st.DataObject) -> None:
    resource = Resource("rdma/hca", (nic(0, 10), nic(1, 10)))
    ids = [one for offer in resource.offers for one in offer.ids]
    available = [ids[n] for n in sorted(numbers)]
    needed = data.draw(st.lists(st.sampled_from(available), unique=True) if available else st.just([]))
    size = data.draw(st.integers(len(needed), max(len(needed), len(available))))
    chosen = answers.preferred(resource, available, needed, size)
    assert len(chosen) == size and len(set(chosen)) == size
    assert set(needed) <= set(chosen) <= set(available)


def test_functions_are_taken_from_each_nic_in_turn() -> None:
    resource = Resource("intel.com/vf", (*map(function, (1, 2, 3)), function(4, "0000:31:00.0")), is_exclusive=True)
    chosen = answers.preferred(resource, [f"0000:30:00.{n}" for n in range(1, 5)], [], 2)
    assert "0000:30:00.4" in chosen


@pytest.mark.parametrize("name", ["rdma/hca", f"{'a' * 60}.example.com/{'b' * 63}"])
def test_file_names_are_short_and_differ(name: str) -> None:
    assert len(answers.plain(name)) <= 48
    assert answers.plain(name) != answers.plain(name + "c")
    assert "/" not in answers.plain(name)
