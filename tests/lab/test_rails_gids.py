"""Rails whose NICs have verbs devices (soft-RoCE): `railcni rails check` wants a RoCE v2 GID for each address."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.machine import Machine, command, gids
from tests.lab.test_doctor import railcni

MACHINES = ("roce",)
RANGES = [["192.168.0.0/24", "fd00:0::/64"], ["192.168.1.0/24", "fd00:1::/64"]]


def network(rail: int) -> dict[str, Any]:
    first, second = RANGES[rail]
    key = {"index": rail, "group": "gpu", "addressing": "same-index", "ranges": RANGES}
    ipam = {"type": "whereabouts", "datastore": "file", "range": first, "ipRanges": [{"range": second}]}
    base = {"cniVersion": "1.1.0", "name": f"gpu-rail-{rail}", "type": "macvlan", "master": f"eth_r{rail}"}
    return {**base, "mtu": 4200, "rail": key, "rdma": {"required": True}, "ipam": ipam}


def test_every_rail_has_its_gids_and_reaches_its_peer_and_one_that_lost_an_address_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], say: Callable[[str], None]
) -> None:
    for rail in (0, 1):
        machine.dummy(f"eth_r{rail}")
        machine.soft_roce(f"mlx5_{rail}", f"eth_r{rail}")
    machine.remember()
    pods = [machine.pod("a"), machine.pod("b")]
    for rail, pod in ((1, pods[0]), (0, pods[1]), (0, pods[0]), (1, pods[1])):
        how = {"container_id": f"id-{pod.name}", "ifname": f"net{rail}", "netns": pod}
        machine.cni(
            "macvlan", "ADD", network(rail), args=f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod.name}", **how
        ).succeeded()
    code, text = railcni(monkeypatch, capsys, "rails", "check", pods[0].path, "--peer", "2", "-o", "json")
    say(text)
    reports = json.loads(text)
    assert code == 0, text
    assert [(r["rail"], r["index"], r["faults"]) for r in reports] == [(0, 1, []), (1, 1, [])]
    assert [sorted(r["gids"]) for r in reports] == [["192.168.0.1", "fd00::1"], ["192.168.1.1", "fd00:1::1"]]
    with pods[0].view.entered():
        command("ip", "addr", "del", "192.168.1.1/24", "dev", "net1")
    assert not any(value.endswith("c0a8:0101") for value, _, _ in gids("mlx5_1").values())
    code, text = railcni(monkeypatch, capsys, "rails", "check", pods[0].path, "-o", "json")
    assert (code, json.loads(text)[0]["faults"]) == (1, [])
    assert "net1 has no address of 192.168.1.0/24" in json.loads(text)[1]["faults"], text
    for pod in pods:
        for rail in (0, 1):
            how = {"container_id": f"id-{pod.name}", "ifname": f"net{rail}", "netns": pod}
            machine.cni("macvlan", "DEL", network(rail), **how).succeeded()
    assert machine.leftovers() == []
