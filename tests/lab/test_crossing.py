"""RoCE that really crosses two macvlans: each pod has a soft verbs device of its own on net1, as Linux 7.2 allows."""

from collections.abc import Callable

from tests.lab import networks, traffic
from tests.lab.machine import Machine, command, gids

MACHINES = ("roce-new",)
ADDRESSES = ("192.168.111.1", "192.168.111.2")
SENT = 50 * 65536  # bytes: traffic.WRITE_BW


def test_what_ib_write_bw_sends_goes_over_net1_of_both_pods(machine: Machine, say: Callable[[str], None]) -> None:
    machine.dummy("ens2f0", mtu=9000)
    networks.keep_leases_in_a_file()
    config = networks.nad("rdma-net-ipam")
    pods = [machine.pod(f"rdma-pod-{n}") for n in (1, 2)]
    for number, pod in enumerate(pods, 1):
        networks.call(machine, "ADD", config, pod).succeeded()
        machine.soft_roce(f"rxe{number}", "net1", pod.name)
    before = [_counters(pod.name) for pod in pods]
    options = [["-d", f"rxe{n}", "-x", str(_index(f"rxe{n}", f"c0a8:6f0{n}"))] for n in (1, 2)]
    text = traffic.write_bw(pods[0], pods[1], ADDRESSES[0], *options)
    say(traffic.shown(text))
    after = [_counters(pod.name) for pod in pods]
    received, sent = after[0][0] - before[0][0], after[1][1] - before[1][1]
    say(f"bytes that net1 of {pods[1].name} has sent: {sent}; that net1 of {pods[0].name} has received: {received}")
    assert received >= SENT and sent >= SENT


def _index(device: str, end: str) -> int:
    return next(n for n, (gid, _, _) in gids(device).items() if gid.endswith(end))


def _counters(pod: str) -> tuple[int, int]:
    """Bytes that net1 has received and sent."""
    said = command("ip", "netns", "exec", pod, "cat", "/proc/net/dev")
    words = next(line for line in said.splitlines() if "net1:" in line).partition(":")[2].split()
    return int(words[0]), int(words[8])
