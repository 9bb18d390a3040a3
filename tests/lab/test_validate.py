"""conf/kubernetes/validate on an RDMA kernel: the script of its two pods, with the real ib_write_bw, and its table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.lab import networks, traffic
from tests.lab.machine import Machine
from tests.node import ROOT, Pod

MACHINES = ("roce",)
FOLDER = ROOT / "conf/kubernetes/validate"
ADDRESSES = {"server": "192.168.127.1", "client": "192.168.127.2"}
Table = dict[str, list[str]]


def document(role: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{role}.yaml").read_text())
    return found


@pytest.fixture
def pods(machine: Machine) -> list[Pod]:
    """Server and client by the NAD, with the addresses that they ask for, as Multus attaches them."""
    machine.dummy("ens2f0", mtu=9000)
    machine.soft_roce("mlx5_0", "ens2f0")
    networks.keep_leases_in_a_file()
    config = json.loads(document("nad")["spec"]["config"])
    for role, address in ADDRESSES.items():
        asked = {**config, "runtimeConfig": {"ips": [f"{address}/24"]}}
        assert networks.call(machine, "ADD", asked, machine.pod(role)).addresses == [f"{address}/24"]
    return list(machine.pods.values())


def started(role: str, **more: str) -> subprocess.Popen[str]:
    """The script in the pod of `role`, with the environment of its job."""
    (container,) = document(role)["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e["value"] for e in container["env"]} | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **more}
    command = ["ip", "netns", "exec", role, "bash", str(FOLDER / "validate.sh")]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], say: Callable[[str], None]) -> tuple[int, Table, str]:
    """Its exit code, the rows of its table by the name of the check, its last line."""
    said = process.communicate(timeout=900)[0]
    say(said)
    lines = said.splitlines()
    rows = {line[:24].strip(): line[24:].split(None, 1) for line in lines[1:-1] if not line.startswith("    ")}
    return process.returncode, rows, lines[-1]


def test_the_pods_of_the_validation_pass_with_the_bandwidths_of_ib_write_bw(
    pods: list[Pod], say: Callable[[str], None]
) -> None:
    with traffic.turned_round("ens2f0", "192.168.127.0/24", list(ADDRESSES.values())):
        server, client = (started(role, ITERATIONS="50") for role in ADDRESSES)
        code, rows, verdict = ended(client, say)
        of_server = ended(server, say)
    assert (code, verdict) == (0, "PASS")
    assert rows["link"] == ["PASS", "net1 has MTU 9000"]
    assert rows["jumbo ping"] == ["PASS", "8972 bytes of payload, not fragmented"]
    assert rows["gid"][0] == "PASS" and rows["gid"][1].startswith("mlx5_0, index ")
    for name in ("ib_write_bw -x", "ib_write_bw -R"):
        result, bandwidth = rows[name]
        assert result == "PASS" and (bandwidth == "? Gb/s" or float(bandwidth.removesuffix(" Gb/s")) > 0)
    assert rows["ib_write_bw, GPU"] == ["SKIP", "no GPU here, or a perftest without CUDA"]
    assert (of_server[0], of_server[2]) == (0, "PASS")


def test_a_server_that_does_not_answer_is_a_FAIL_in_the_table(pods: list[Pod], say: Callable[[str], None]) -> None:
    code, rows, verdict = ended(started("client", ITERATIONS="50", SECONDS_TO_WAIT="1"), say)
    assert rows["jumbo ping"][0] == "PASS"  # its link is there
    assert (rows["ib_write_bw -x"][0], rows["ib_write_bw -R"][0]) == ("FAIL", "FAIL")
    assert (code, verdict) == (1, "FAIL")
