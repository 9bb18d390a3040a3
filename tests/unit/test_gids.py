"""The extra `rdma`: how GIDs are found, and what is said when they are not, on recorded trees of sysfs."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.link.features import deviceinfo, gids, verbs_device
from cni.shared import policy
from cni.shared.config import Fault
from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig, IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment, Request
from tests.sysfs import Tree

PORTS = [("mlx5_0", 1)]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An mlx5 of a node with macvlans on it: the netdev's own GID, and 16 places in all."""
    tree = Tree(tmp_path / "sys")
    tree.pci("0000:3b:00.0", above=["0000:3a:00.0"], driver="mlx5_core")
    tree.netdev("ens2f0", pci="0000:3b:00.0", mtu=9000)
    tree.verbs("mlx5_0", pci="0000:3b:00.0", netdev="ens2f0", size=16)
    return tree


def read(value: Any, runtime: Any = None) -> tuple[verbs_device.VerbsConfig | None, list[str]]:
    faults: list[Fault] = []
    config = verbs_device.read(
        value, Request({"CNI_COMMAND": "ADD"}, b"", {"name": "n", "runtimeConfig": runtime}, {}), faults
    )
    return config, [str(f) for f in faults]


@pytest.mark.parametrize(("value", "required"), [(None, False), ("auto", False), ({}, False), (True, True)])
def test_it_acts_by_itself_and_requires_nothing_unless_said_otherwise(value: Any, required: bool) -> None:
    config, faults = read(value)
    assert config and (config.required, config.wait_seconds, config.link_local, faults) == (required, 2, True, [])
    assert read(False) == (None, [])


@pytest.mark.parametrize("value", [0, 1, "yes", "", ["auto"], 0.5])
def test_what_is_no_switch_is_named(value: Any) -> None:
    assert read(value) == (None, [f'rdma {json.dumps(value)}: want true, false, "auto", or an object'])


def test_all_bad_keys_of_an_object_are_named_at_once() -> None:
    assert read({"required": "yes", "waitSeconds": 61, "ipv6LinkLocal": 0})[1] == [
        'rdma.required "yes": want true or false', "rdma.waitSeconds 61: want an integer from 0 to 60",
        "rdma.ipv6LinkLocal 0: want true or false",
    ]  # fmt: skip


def test_a_gid_is_that_of_the_address_with_the_link_and_of_roce_v2(tree: Tree) -> None:
    address = "192.168.111.1"
    tree.gid("mlx5_0", address, ndev="net1", kind="IB/RoCE v1", index=4)
    tree.gid("mlx5_0", address, ndev="net2", index=5)
    assert gids.find(PORTS, [address], "net1", str(tree)) == {}
    tree.gid("mlx5_0", address, ndev="net1", index=6)
    tree.gid("mlx5_0", "fd00:111::7", ndev="net1", index=7)
    found = gids.find(PORTS, [address, "fd00:111::7", "192.168.111.9"], "net1", str(tree))
    assert found == {address: ("mlx5_0", 1, 6), "fd00:111::7": ("mlx5_0", 1, 7)}


def test_a_gid_may_be_in_the_table_of_any_port_of_a_bond(tree: Tree) -> None:
    tree.netdev("ens3f0", pci="0000:5e:00.0")
    tree.verbs("mlx5_1", pci="0000:5e:00.0", netdev="ens3f0", size=4)
    tree.gid("mlx5_1", "192.168.111.1", ndev="net1", index=3)
    found = gids.find([*PORTS, ("mlx5_1", 1)], ["192.168.111.1"], "net1", str(tree))
    assert found == {"192.168.111.1": ("mlx5_1", 1, 3)}


def test_a_gid_that_comes_later_is_waited_for(tree: Tree) -> None:
    later = threading.Timer(0.1, lambda: tree.gid("mlx5_0", "192.168.111.1", ndev="net1", index=6))
    later.start()
    found = gids.wait(PORTS, ["192.168.111.1"], "net1", 60, str(tree))
    later.join()
    assert found == {"192.168.111.1": ("mlx5_0", 1, 6)}


def test_the_wait_ends(tree: Tree) -> None:
    began = time.monotonic()
    assert gids.wait(PORTS, ["192.168.111.1"], "net1", 0.1, str(tree)) == {}
    assert time.monotonic() - began >= 0.1
    assert gids.wait(PORTS, [], "net1", 60, str(tree)) == {}  # nothing to wait for


def fill(tree: Tree) -> None:
    for n in range(15):
        tree.gid("mlx5_0", f"192.168.112.{n}", ndev="net1")


GIDS, DEVICE = "class/infiniband/mlx5_0/ports/1/gids", "class/infiniband/mlx5_0"
INSTEAD: dict[str, tuple[Callable[[Tree], object], list[str]]] = {
    "nothing": (lambda tree: None, ["it is ACTIVE, 1 of 16 entries are in use"]),
    "an entry of another type": (
        lambda tree: tree.gid("mlx5_0", "192.168.111.1", ndev="net1", kind="IB/RoCE v1", index=4),
        ["only entry 4 of type IB/RoCE v1"]),
    "an entry of another link": (
        lambda tree: tree.gid("mlx5_0", "192.168.111.1", ndev="net7", index=4), ['entry 4 has it for a link "net7"']),
    "a full table": (fill, ["its table is full, 16 of 16", "ipv6LinkLocal"]),
    "no device": (lambda tree: (tree.root / DEVICE).unlink(), ["the verbs device is gone"]),
    "a device about to go": (lambda tree: (tree.root / GIDS).rename((tree.root / GIDS).with_name("former")),
                             ["the verbs device is gone"]),
}  # fmt: skip


@pytest.mark.parametrize("what", INSTEAD)
def test_of_a_missing_gid_it_is_said_what_there_is_instead(tree: Tree, what: str) -> None:
    change, words = INSTEAD[what]
    change(tree)
    text = gids.missing(PORTS, "192.168.111.1", "net1", str(tree))
    assert all(word in text for word in ("192.168.111.1", "net1", "mlx5_0 port 1", *words))
    assert len(text) <= 250  # what a runtime shows


@pytest.mark.parametrize(("mtu", "words"), [
    (4192, []), (4191, ["MTU 4191 of net1", "RoCE MTU of 2048", "4192", "ens2f0"]),
    (1500, ["MTU 1500 of net1", "RoCE MTU of 1024", "4192", "ens2f0"]),
])  # fmt: skip
def test_a_small_mtu_is_remarked_with_its_roce_mtu_and_what_is_needed(tree: Tree, mtu: int, words: list[str]) -> None:
    said = verbs_device.remarks(PORTS, "ens2f0", "net1", mtu, str(tree))
    assert len(said) == bool(words) and all(word in said[0] for word in words)


def test_from_80_percent_on_the_table_is_remarked(tree: Tree) -> None:
    for n in range(11):
        tree.gid("mlx5_0", f"192.168.112.{n}", ndev="net1")
    assert verbs_device.remarks(PORTS, "ens2f0", "net1", 9000, str(tree)) == []  # 12 of 16
    tree.gid("mlx5_0", "192.168.113.1", ndev="net1")
    (text,) = verbs_device.remarks(PORTS, "ens2f0", "net1", 9000, str(tree))
    assert "mlx5_0 port 1 (ens2f0) has 13 of 16" in text


def test_a_port_that_is_not_active_is_a_fault_with_its_states(tree: Tree) -> None:
    assert verbs_device.port_fault(PORTS, "ens2f0", str(tree)) == ""
    tree.put(tree.root / "class/infiniband/mlx5_0/ports/1", {"state": "1: DOWN", "phys_state": "3: Disabled"})
    text = verbs_device.port_fault(PORTS, "ens2f0", str(tree))
    assert "port 1 of verbs device mlx5_0" in text and "ens2f0" in text and "DOWN, Disabled" in text


def test_a_device_is_described_as_the_specification_has_it_and_one_of_software_without_a_pci_part(tree: Tree) -> None:
    tree.pci("0000:3b:00.2", above=["0000:3a:00.0"], physical="0000:3b:00.0")
    tree.netdev("ens2f0v0", pci="0000:3b:00.2")
    tree.verbs("mlx5_4", pci="0000:3b:00.2", netdev="ens2f0v0", size=4)
    assert deviceinfo.described("mlx5_4", 1, {"192.168.111.1": 3}, str(tree)) == {
        "type": "pci", "version": "1.1.0",
        "pci": {"pci-address": "0000:3b:00.2", "rdma-device": "mlx5_4", "pf-pci-address": "0000:3b:00.0"},
        "rdma": {"rdma-device": "mlx5_4", "port": 1, "gid-index": {"192.168.111.1": 3}},
    }  # fmt: skip
    assert "pf-pci-address" not in deviceinfo.described("mlx5_0", 1, {}, str(tree))["pci"]
    tree.verbs("rxe0", netdev="ens2f0", size=4)
    found = deviceinfo.described("rxe0", 1, {}, str(tree))
    assert (found["type"], "pci" in found, found["rdma"]["rdma-device"]) == ("rdma", False, "rxe0")


DESCRIBED = {
    "type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:3b:00.0", "rdma-device": "mlx5_0"},
    "rdma": {"rdma-device": "mlx5_0", "port": 1, "gid-index": {}},
}  # fmt: skip


ME = {"attachment": ["rdma", "c1", "net1"], "pod": ["ns", "pod-1", ""]}
MARKED = {**DESCRIBED, "rdma": {**DESCRIBED["rdma"], "attachment": ME["attachment"]}}
PCI = "0000:3b:00.0"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    """The node's records, in a directory of the test."""
    state = str(tmp_path / "state")
    monkeypatch.setattr(deviceinfo, "Records", lambda log=None: Records(state, log))
    return Records(state)


def of_pci(address: str) -> dict[str, Any]:
    """What a device plugin says of a device."""
    return {"type": "pci", "version": "1.0.0", "pci": {"pci-address": address, "vhost-net": "/dev/vhost-net"}}


@pytest.mark.parametrize("there", [None, "", "{", "[]", '{"type": 5}', '{"type": "pci", "pci": []}'])
def test_the_file_replaces_what_describes_nothing(tmp_path: Path, records: Records, there: str | None) -> None:
    path = tmp_path / "devinfo/cni/net1.json"
    if there is not None:
        path.parent.mkdir(parents=True)
        path.write_text(there)
    deviceinfo.write(str(path), DESCRIBED, ME, Log())
    assert json.loads(path.read_text()) == MARKED
    assert [p.name for p in path.parent.iterdir()] == ["net1.json"]
    for _ in range(2):
        deviceinfo.remove(str(path), ME, Log())
    assert list(path.parent.iterdir()) == []


def test_what_was_there_of_a_device_plugin_stays(tmp_path: Path, records: Records) -> None:
    path = tmp_path / "net1.json"
    path.write_text(json.dumps(of_pci(PCI)))
    deviceinfo.write(str(path), DESCRIBED, ME, Log())
    merged = json.loads(path.read_text())
    assert merged["pci"] == {**of_pci(PCI)["pci"], "rdma-device": "mlx5_0"}
    assert (merged["version"], merged["rdma"]) == ("1.1.0", MARKED["rdma"])


@pytest.mark.parametrize(
    "theirs", [{"type": "vdpa", "version": "1.1.0"}, {"type": "memif"}, of_pci("0000:3b:00.1"), of_pci("")], ids=str
)
def test_what_describes_another_device_is_neither_changed_nor_removed(
    tmp_path: Path, records: Records, theirs: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net1.json"
    path.write_text(json.dumps(theirs))
    deviceinfo.write(str(path), DESCRIBED, ME, Log())
    deviceinfo.remove(str(path), ME, Log())
    assert json.loads(path.read_text()) == theirs
    assert f"{path} describes a device of type" in capfd.readouterr().err


OTHERS = {
    "a living attachment's": (["rdma", "c2", "net1"], ["ns", "pod-2", ""], False),
    "one of a namesake in another namespace": (["rdma", "c2", "net1"], ["other", "pod-1", ""], False),
    "that of the pod's former sandbox": (["rdma", "c0", "net1"], ["ns", "pod-1", ""], True),
    "one that nobody has any more": (["rdma", "c2", "net1"], None, True),
    "its own": (["rdma", "c1", "net1"], ["ns", "pod-1", ""], True),
    "one that names nobody": (None, None, False),
}


@pytest.mark.parametrize("which", OTHERS)
def test_a_file_is_overwritten_and_removed_for_its_own_attachment_alone(
    tmp_path: Path, records: Records, which: str
) -> None:
    mark, pod, may = OTHERS[which]
    path = tmp_path / "net1.json"
    of_rdma = {**DESCRIBED["rdma"], "gid-index": {"10.0.0.7": 3}, **({"attachment": mark} if mark else {})}
    theirs = {**DESCRIBED, "rdma": of_rdma}
    path.write_text(json.dumps(theirs))
    if pod:
        records.write(Attachment(*mark), "link", {"pod": pod})
    if may:
        deviceinfo.write(str(path), DESCRIBED, ME, Log())
        deviceinfo.remove(str(path), {**ME, "attachment": ["rdma", "c0", "net1"]}, Log())  # a late DEL
        assert json.loads(path.read_text()) == MARKED
    else:
        with pytest.raises(TryAgainLater, match=r"net1\.json"):
            deviceinfo.write(str(path), DESCRIBED, ME, Log())
        deviceinfo.remove(str(path), ME, Log())
        assert json.loads(path.read_text()) == theirs


def test_a_file_that_cannot_be_written_is_named_and_nothing_to_remove(tmp_path: Path, records: Records) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IoFailure, match=r"file/net1\.json cannot be written"):
        deviceinfo.write(str(tmp_path / "file/net1.json"), DESCRIBED, ME, Log())
    deviceinfo.remove(str(tmp_path / "file/net1.json"), ME, Log())


@pytest.mark.parametrize("value", [
    *(5, ["/run"], "net1.json", "/etc/passwd", "/run/k8s.cni.cncf.io/devinfo/cni/../../../shadow", "/run/x/"),
    "/run/k8s.cni.cncf.io/devinfo/dp/nvidia.com-rdma-0000:3b:00.2-device.json",
    "/run/k8s.cni.cncf.io/devinfo/cni/../dp/nvidia.com-rdma-0000:3b:00.2-device.json",
])  # fmt: skip
def test_a_path_that_is_no_place_for_the_file_is_refused(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(policy, "_current", policy.Policy({}))
    with pytest.raises(InvalidConfig, match=r"runtimeConfig\.CNIDeviceInfoFile"):
        deviceinfo.path(value)
    of_multus = "/run/k8s.cni.cncf.io/devinfo/cni/ns_pod_net1.json"
    assert deviceinfo.path(f"/var{of_multus}").endswith(of_multus)
    assert deviceinfo.path(None) == deviceinfo.path("") == ""
