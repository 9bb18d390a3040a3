"""RDMA traffic between pods of a guest, by the programs of perftest and librdmacm, and what has to be so for soft-RoCE."""

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.lab.machine import command
from tests.node import Pod
from tests.view import View

WRITE_BW = ("ib_write_bw", "-F", "--report_gbits", "-q", "1", "-n", "50", "-s", "65536")
_HOST = View("/proc/1/ns/net")
_TRIES = 20  # of the client, until the server listens
_NOBODY_YET = ("Couldn't connect", "RDMA_CM_EVENT_REJECTED", "Unexpected CM event", "event REJECTED")
_UNMEASURED = "Correlation coefficient r^2"  # what it says where the guest's clock is unsteady: perftest, get_clock.c
_LINE = re.compile(r"^[ \t]*\d+[ \t]+\d+[ \t]+[\d.]+[ \t]+([\d.]+)[ \t]+[\d.]+[ \t]*$", re.MULTILINE)


def between(server: Pod, client: Pod, of_server: Sequence[str], of_client: Sequence[str]) -> str:
    """Run a program as server in one pod and as client in another; what the client said. AssertionError: one failed."""
    enter = ("ip", "netns", "exec")
    listens = subprocess.Popen(
        [*enter, server.name, *of_server], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for _ in range(_TRIES):
            time.sleep(0.5)
            done = subprocess.run([*enter, client.name, *of_client], capture_output=True, text=True, timeout=900)
            if done.returncode == 0 or not any(word in done.stdout + done.stderr for word in _NOBODY_YET):
                break
        if done.returncode:
            listens.kill()
        said = listens.communicate(timeout=300)[0]
        assert done.returncode == 0, f"client: {done.stdout}{done.stderr}\nserver: {said}"
        return done.stdout + done.stderr
    finally:
        if listens.poll() is None:
            listens.kill()
            listens.wait()


def write_bw(server: Pod, client: Pod, address: str, of_server: Sequence[str], of_client: Sequence[str]) -> str:
    """ib_write_bw between two pods; its report. AssertionError: there was no bandwidth, though it could measure one."""
    text = between(server, client, [*WRITE_BW, *of_server], [*WRITE_BW, *of_client, address])
    found = _LINE.search(text)
    assert found and (float(found[1]) > 0 or _UNMEASURED in text), text
    return text


def shown(text: str) -> str:
    """What is worth a look in a report of ib_write_bw: link type, MTU, GIDs, the lines of the bandwidth."""
    words = ("Link type", " Mtu ", "GID index", "GID:", "rdma_cm QPs", "#bytes")
    lines = [line for line in text.splitlines() if any(word in line for word in words) or _LINE.match(line)]
    return "\n".join(lines)


@contextmanager
def turned_round(master: str, subnet: str, addresses: Sequence[str]) -> Iterator[None]:
    """Before Linux 7.2 soft-RoCE sends and receives in the kernel's first namespace alone, whichever pod asks: so that two
    pods on one soft verbs device reach one another, the first namespace here has their addresses too, and what it sends
    by `master` comes back to it. With hardware the card does that."""
    for number in range(len(addresses)):
        command("ip", "addr", "add", f"{addresses[number]}/32", "dev", master)
    names = ("all", master)
    before = {name: _HOST.sysctl(f"net/ipv4/conf/{name}/rp_filter") for name in names}
    for name in names:
        _HOST.set_sysctl(f"net/ipv4/conf/{name}/rp_filter", 0)
        _HOST.set_sysctl(f"net/ipv4/conf/{name}/accept_local", 1)
    command("ip", "rule", "add", "pref", "10", "lookup", "local")
    rule = ("pref", "5", "iif", "lo", "oif", master, "to", subnet, "lookup", "100")
    command("ip", "rule", "add", *rule)
    command("ip", "rule", "del", "pref", "0")
    command("ip", "route", "add", subnet, "dev", master, "table", "100")
    command("tc", "qdisc", "add", "dev", master, "clsact")
    match = ("protocol", "ip", "flower", "ip_proto", "udp", "dst_port", "4791")
    command(
        "tc", "filter", "add", "dev", master, "egress", *match, "action", "mirred", "ingress", "redirect", "dev", master
    )
    try:
        yield
    finally:
        command("tc", "qdisc", "del", "dev", master, "clsact")
        command("ip", "rule", "add", "pref", "0", "lookup", "local")
        command("ip", "rule", "del", *rule)
        command("ip", "rule", "del", "pref", "10")
        command("ip", "route", "flush", "table", "100")
        for name in names:
            _HOST.set_sysctl(f"net/ipv4/conf/{name}/rp_filter", before[name])
            _HOST.set_sysctl(f"net/ipv4/conf/{name}/accept_local", 0)
        for address in addresses:
            command("ip", "addr", "del", f"{address}/32", "dev", master)
