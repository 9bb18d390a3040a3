"""`railcni doctor` on a node with RDMA: every fault that it is to name is planted, and none is named without one."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni.cli.doctor import report
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, FAULT, Observation
from cni.cli.main import main
from tests.lab.machine import Machine, command
from tests.node import BIN, Pod

MACHINES = ("roce",)

NETWORK = {
    "cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "mtu": 9000,
    "ipam": {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"},
}  # fmt: skip
POD_1 = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-1"
POD_2 = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-2"


@pytest.fixture
def pod(machine: Machine) -> Pod:
    """A pod with RDMA on a healthy node."""
    command("modprobe", "rdma_ucm")
    machine.dummy()
    machine.soft_roce()
    pod = machine.pod("pod1")
    machine.cni("macvlan", "ADD", NETWORK, netns=pod, args=POD_1).succeeded()
    return pod


def examined(pod: str = "") -> report.DoctorReport:
    return report.examine(NodeFacts(NodePlaces(plugins=(str(BIN),)), pod))


def faults(pod: str = "") -> list[Observation]:
    return examined(pod).faults


def checks(found: list[Observation]) -> list[str]:
    return sorted({fault.check for fault in found})


@contextmanager
def sysctl(name: str, value: str) -> Iterator[None]:
    path = Path("/proc/sys", name)
    before = path.read_text()
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(before)


def railcni(patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """The command in this process, whose imports are paid for: its exit code and stdout."""
    capsys.readouterr()
    patch.setattr(sys, "argv", ["railcni", *argv])
    code = main()
    return code, capsys.readouterr().out


def told(found: list[Observation], say: Callable[[str], None]) -> str:
    for fault in found:
        say(f"{fault.check}: {fault.subject}: {fault.found}; remedy: {fault.remedy}")
    return " ".join(f"{fault.subject} {fault.found}" for fault in found)


def test_a_healthy_node_has_no_fault_and_the_exit_code_0(
    machine: Machine, pod: Pod, say: Callable[[str], None]
) -> None:
    done = machine.run([BIN / "railcni", "doctor", "--cni-path", BIN, "-v"], timeout=600)
    say(done.stdout.decode())
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert "fault " not in done.stdout.decode()
    assert "index" in done.stdout.decode() and "net1 of default/pod-1" in done.stdout.decode()


def test_a_healthy_pod_has_no_fault_and_its_gid_is_told(pod: Pod) -> None:
    found = examined("default/pod-1")
    assert found.faults == []
    (gid,) = [f for f in found.findings if f.check == "pods"]
    assert gid.subject == "net1 of default/pod-1" and gid.found.startswith("192.168.111.1: mlx5_0 port 1 index ")


def test_rdma_shows_the_pods_gid_and_what_nccl_is_told(
    pod: Pod, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, shown = railcni(monkeypatch, capsys, "rdma", "--ibdev2netdev")
    assert shown == "mlx5_0 port 1 ==> ens2f0 (Up)\n"
    _, said = railcni(monkeypatch, capsys, "rdma", "--env", "default/pod-1")
    say(shown + said)
    device, *selection, link = said.splitlines()
    assert (device, link) == ("NCCL_IB_HCA==mlx5_0:1", "NCCL_SOCKET_IFNAME==net1")
    assert {*selection} <= {"NCCL_IB_ADDR_RANGE=192.168.111.1/32"}


def test_a_wrong_mtu_is_named(pod: Pod, say: Callable[[str], None]) -> None:
    command("ip", "link", "set", "ens2f0", "mtu", "1500")
    found = faults()
    assert "MTU 1500 of ens2f0, so RoCE MTU 1024" in told(found, say)
    assert checks(found) == ["mtu"]


def test_a_port_that_is_down_is_named_with_its_remedy_and_the_exit_code_1(
    pod: Pod, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command("ip", "link", "set", "ens2f0", "down")
    code, said = railcni(monkeypatch, capsys, "doctor", "--cni-path", str(BIN))
    say(said)
    assert "mlx5_0 port 1 (ens2f0): DOWN" in said and "ip link set ens2f0 up" in said
    assert code == 1
    _, lines = railcni(monkeypatch, capsys, "rdma", "--ibdev2netdev")
    assert lines == "mlx5_0 port 1 ==> ens2f0 (Down)\n"


def test_a_gid_that_was_removed_is_named_with_its_pod(pod: Pod, say: Callable[[str], None]) -> None:
    command("ip", "-n", "pod1", "address", "delete", "192.168.111.1/24", "dev", "net1")
    found = faults()
    assert "net1 of default/pod-1 192.168.111.1 is recorded for it" in told(found, say)
    assert checks(found) == ["pods"]
    assert checks(faults("default/pod-1")) == ["pods"]


def test_a_gid_table_that_is_nearly_full_is_named_and_then_the_pod_that_got_no_gid(
    machine: Machine, pod: Pod, say: Callable[[str], None]
) -> None:
    room = len(os.listdir("/sys/class/infiniband/mlx5_0/ports/1/gids"))
    wanted = room * 8 // 10
    _add_addresses(range(wanted))
    found = faults()
    assert f"GID table nearly full: {wanted + 3} of {room}" in told(found, say)
    assert checks(found) == ["gids"]
    _add_addresses(range(wanted, room))  # more than there is room for: who comes now gets no GID
    late = machine.pod("pod2")
    machine.cni("macvlan", "ADD", NETWORK, netns=late, container_id="c2", args=POD_2).succeeded()
    found = faults()
    said = told(found, say)
    assert f"GID table full: {room} of {room}" in said
    assert "net1 of default/pod-2 no RoCE v2 GID of 192.168.111.2 on mlx5_0 port 1" in said
    assert checks(found) == ["gids", "pods"]


def _add_addresses(numbers: range) -> None:
    batch = Path("/run/railcni-addresses")
    batch.write_text("".join(f"address add 10.{i >> 8}.{i & 255}.1/32 dev ens2f0\n" for i in numbers))
    command("ip", "-batch", str(batch))
    batch.unlink()


def test_a_module_that_is_missing_is_named(pod: Pod, say: Callable[[str], None]) -> None:
    command("modprobe", "-r", "rdma_ucm")
    try:
        found = faults()
    finally:
        command("modprobe", "rdma_ucm")
    assert "rdma_ucm not loaded" in told(found, say)
    assert checks(found) == ["modules"]


def test_a_strict_reverse_path_filter_is_a_fault_where_it_drops_what_a_rail_gets(
    machine: Machine, pod: Pod, say: Callable[[str], None]
) -> None:
    with sysctl("net/ipv4/conf/ens2f0/rp_filter", "1"):
        assert faults() == []  # it has no address
        command("ip", "address", "add", "10.1.0.1/24", "dev", "ens2f0")
        found = examined()
        assert found.faults == []
        (advice,) = [f for f in found.findings if f.check == "parameters" and f.level == ADVICE]
        told([advice], say)
    machine.dummy("ens3f0")
    machine.soft_roce("mlx5_1", "ens3f0")
    command("ip", "address", "add", "10.1.0.2/24", "dev", "ens3f0")
    with sysctl("net/ipv4/conf/all/arp_ignore", "1"), sysctl("net/ipv4/conf/all/arp_announce", "2"):
        with sysctl("net/ipv4/conf/all/rp_filter", "1"):
            found_faults = faults()
        assert "ens3f0 rp_filter is 1, strict, and answers to 10.1.0.0/24 leave by ens2f0" in told(found_faults, say)
        assert checks(found_faults) == ["parameters"]
        assert faults() == []


def test_a_strict_reverse_path_filter_of_a_pod_is_a_fault_where_its_answers_leave_by_another_link(
    machine: Machine, say: Callable[[str], None]
) -> None:
    command("modprobe", "rdma_ucm")
    machine.dummy()
    machine.soft_roce()
    pod = machine.pod("pod1")
    machine.cni("macvlan", "ADD", NETWORK, netns=pod, args=POD_1).succeeded()
    pod.view.set_sysctl("net/ipv4/conf/net1/rp_filter", 1)
    assert faults("default/pod-1") == []  # answers to its subnet leave by net1
    machine.cni("macvlan", "DEL", NETWORK, netns=pod, args=POD_1).succeeded()
    for words in ("link add eth0 type dummy", "link set eth0 up", "address add 192.168.111.200/24 dev eth0"):
        command("ip", "-n", "pod1", *words.split())
    machine.cni("macvlan", "ADD", NETWORK, netns=pod, args=POD_1).succeeded()
    pod.view.set_sysctl("net/ipv4/conf/net1/rp_filter", 1)
    found = faults("default/pod-1")
    assert "net1 rp_filter is 1, strict, and answers to 192.168.111.0/24 leave by eth0" in told(found, say)
    assert checks(found) == ["pod"]
    pod.view.set_sysctl("net/ipv4/conf/net1/rp_filter", 2)
    assert faults("default/pod-1") == []


def test_two_rails_in_one_subnet_that_answer_for_each_other_are_named(
    machine: Machine, pod: Pod, say: Callable[[str], None]
) -> None:
    machine.dummy("ens3f0")
    machine.soft_roce("mlx5_1", "ens3f0")
    for number, link in enumerate(("ens2f0", "ens3f0"), start=1):
        command("ip", "address", "add", f"10.1.0.{number}/24", "dev", link)
    found = faults()
    assert "ens2f0, ens3f0 all in 10.1.0.0/24" in told(found, say)
    assert checks(found) == ["parameters"]
    with sysctl("net/ipv4/conf/all/arp_ignore", "1"), sysctl("net/ipv4/conf/all/arp_announce", "2"):
        assert faults() == []


def test_a_port_that_is_down_and_that_nobody_uses_is_no_fault(machine: Machine, pod: Pod) -> None:
    machine.dummy("ens3f0")
    machine.soft_roce("mlx5_1", "ens3f0")
    command("ip", "link", "set", "ens3f0", "down")
    found = examined()
    assert found.faults == []
    (state,) = [f.found for f in found.findings if f.subject == "mlx5_1 port 1 (ens3f0)" and f.check == "ports"]
    assert state.endswith("nothing here uses it")


def test_a_device_node_that_is_gone_is_named(pod: Pod, say: Callable[[str], None]) -> None:
    command("mv", "/dev/infiniband/uverbs0", "/dev/infiniband/away")
    try:
        found = faults()
    finally:
        command("mv", "/dev/infiniband/away", "/dev/infiniband/uverbs0")
    assert "/dev/infiniband/uverbs0 not there" in told(found, say)
    assert checks(found) == ["nodes"]


def test_a_node_without_a_verbs_device_is_told_so_and_the_rest_is_skipped(
    machine: Machine, say: Callable[[str], None]
) -> None:
    command("modprobe", "rdma_ucm")
    found = examined()
    assert [f.check for f in found.findings if f.level == FAULT] == ["devices"], told(found.faults, say)
    assert "ports" in [f.check for f in found.findings if f.level == "skipped"]


def test_a_network_with_a_fault_is_named_with_its_place(pod: Pod, say: Callable[[str], None]) -> None:
    Path("/etc/cni/net.d").mkdir(parents=True, exist_ok=True)
    Path("/etc/cni/net.d/10-rdma.conf").write_text(
        '{"cniVersion": "1.0.0", "name": "a", "type": "macvlan", "mtu": "9k"}'
    )
    found = faults()
    assert "/etc/cni/net.d/10-rdma.conf:1:" in told(found, say)
    assert checks(found) == ["networks"]
