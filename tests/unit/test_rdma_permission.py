"""Which verbs devices of the host the chained plugin rdma may move, by the node's policy and by what the netdev carries."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cni.link.plugins import rdma as plugin
from cni.link.plugins import uplink
from cni.shared import policy
from cni.shared.kernel import node_routes, rdma_sysfs
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel.links import Link
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import parse
from tests.unit.test_host_device_plan import ENVIRON, link

PF, VF = "0000:3b:00.0", "0000:3b:00.2"
HOST = [
    link(name="ens2f0", index=2, parent_bus="pci", parent_device=PF),
    link(name="ens2f0v0", index=3, parent_bus="pci", parent_device=VF),
    link(name="eth0", index=4),
]
VERBS = {"mlx5_0": PF, "mlx5_2": VF, "rxe0": ""}
NETDEVS = {"rxe0": "eth0"}


class Links:
    """A namespace with these links."""

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __init__(self, *found: Link) -> None:
        self._found = list(found)

    def links(self) -> list[Link]:
        return self._found


class Sandbox:
    def __init__(self, *found: Link) -> None:
        self.rtnl = Links(*found)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose traffic goes by ens2f0 and eth0."""
    monkeypatch.setattr(plugin, "Rtnl", lambda: Links(*HOST))
    monkeypatch.setattr(rdma_sysfs, "pci_of", VERBS.__getitem__)
    monkeypatch.setattr(rdma_sysfs, "netdev_of", lambda device, port: NETDEVS.get(device, ""))
    carries = {"ens2f0": '"ens2f0" carries the default route', "eth0": '"eth0" carries the default route'}
    monkeypatch.setattr(uplink, "ways", lambda *_: [])
    monkeypatch.setattr(uplink, "carried", lambda device, *_: carries.get(device.name, ""))
    monkeypatch.setattr(node_routes, "all_bodies", lambda _: [])


def given(monkeypatch: pytest.MonkeyPatch, **document: Any) -> None:
    monkeypatch.setattr(policy, "_current", policy.Policy(document, "railcni.json"))


def refusal(device: str, *inside: Link, parent: str = "") -> str:
    try:
        plugin._permit(device, parent, Sandbox(*inside))  # type: ignore[arg-type]
    except InvalidConfig as refused:
        return refused.msg
    return ""


@pytest.mark.parametrize("device", ["mlx5_0", "rxe0"])
def test_a_verbs_device_whose_netdev_carries_the_nodes_traffic_is_not_moved(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    given(monkeypatch)
    assert f'verbs device "{device}" is refused' in refusal(device)
    assert "carries the default route" in refusal(device) and "`uplinks` of railcni.json" in refusal(device)
    given(monkeypatch, uplinks=["ens2f0", "eth0"])
    assert refusal(device) == ""


def test_without_a_list_a_verbs_device_that_the_node_does_not_need_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch)
    assert refusal("mlx5_2") == ""


@pytest.mark.parametrize("listed", ["mlx5_2", VF, "ens2f0v*"])
def test_a_verbs_device_is_listed_by_its_name_its_pci_address_or_its_netdev(
    monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    given(monkeypatch, devices=[listed])
    assert refusal("mlx5_2") == ""
    given(monkeypatch, devices=["ens9"])
    assert f'verbs device "mlx5_2 {VF} ens2f0v0" is not in devices' in refusal("mlx5_2")


def test_what_came_into_the_sandbox_by_the_plugin_before_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called by its name in the pod there, so the policy's names do not match it."""
    given(monkeypatch, devices=["ens2f0v0"])
    without = [each for each in HOST if each.parent_device != VF]
    monkeypatch.setattr(plugin, "Rtnl", lambda: Links(*without))
    assert refusal("mlx5_2", link(name="net1", parent_bus="pci", parent_device=VF)) == ""
    assert "is not in devices" in refusal("mlx5_2", link(name="net1"))


def test_an_auxiliary_device_is_known_as_the_parent_that_it_is_named_by(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, devices=["mlx5_core.sf.2"])
    monkeypatch.setattr(rdma_sysfs, "pci_of", lambda _: "")
    assert refusal("mlx5_7", parent="mlx5_core.sf.2") == ""
    assert refusal("mlx5_7", parent="mlx5_core.sf.3") != ""


class Rdma:
    """RDMA netlink of a host with mlx5_0; it is never moved here."""

    def device(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(index=1, name=name)


def test_an_add_asks_before_it_records_and_moves_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given(monkeypatch)
    monkeypatch.setattr(sandboxes, "opened", lambda _: nullcontext(Sandbox()))
    monkeypatch.setattr(plugin, "_exclusive", lambda _: Rdma())
    document = {"cniVersion": "1.1.0", "name": "n", "type": "rdma", "verbsDevice": "mlx5_0"}
    result = {"cniVersion": "1.1.0", "interfaces": [], "ips": []}
    asked = parse(ENVIRON, json.dumps({**document, "prevResult": result}).encode())
    records = Records(str(tmp_path))
    with pytest.raises(InvalidConfig, match="carries the default route"):
        plugin.add(asked, records)
    assert list(records.all("rdma")) == []
