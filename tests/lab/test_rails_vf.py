"""Rails whose links are VFs (igb), which `sriov` puts into a VLAN a rail: one index, and each reaches its peer."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.machine import Machine
from tests.lab.pci import card
from tests.lab.test_doctor import railcni

MACHINES = ("sriov",)
RANGES = ["192.168.0.0/24", "192.168.1.0/24"]


def network(rail: int, vf: str) -> dict[str, Any]:
    key = {"index": rail, "group": "gpu", "addressing": "same-index", "ranges": RANGES}
    ipam = {"type": "whereabouts", "datastore": "file", "range": RANGES[rail]}
    own = {"type": "sriov", "deviceID": vf, "vlan": 100 + rail, "rail": key, "ipam": ipam}
    return {"cniVersion": "1.1.0", "name": f"gpu-rail-{rail}", **own}


def test_rails_over_vfs_have_one_index_and_each_reaches_its_peer_by_its_own_vlan(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], say: Callable[[str], None]
) -> None:
    with card(machine, vfs=4) as nic:
        before = [nic.state(number) for number in range(4)]
        pods = [machine.pod("a"), machine.pod("b")]
        calls = [(pod, rail, nic.vfs[2 * n + rail]) for n, pod in enumerate(pods) for rail in (1 - n, n)]
        for verb in ("ADD", "DEL"):
            for pod, rail, vf in calls:
                how = {"container_id": f"id-{pod.name}", "ifname": f"net{rail}", "netns": pod}
                args = f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod.name}"
                machine.cni("sriov", verb, network(rail, vf), args=args, **how).succeeded()
            if verb == "DEL":
                break
            assert [nic.state(number)["vlan_list"][0]["vlan"] for number in range(4)] == [100, 101, 100, 101]
            code, text = railcni(monkeypatch, capsys, "rails", "check", pods[0].path, "--peer", "2", "-o", "json")
            say(text)
            assert code == 0, text
            assert [(r["rail"], r["index"], r["faults"]) for r in json.loads(text)] == [(0, 1, []), (1, 1, [])]
        assert [nic.state(number) for number in range(4)] == before
        assert (machine.leases(), machine.files()) == ([], [])
