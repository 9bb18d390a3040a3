"""The test node itself: it keeps to itself, and nothing of it outlives the process that made it."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.node import ROOT, STATE, Node, until

KEEPER = """
import sys, time
from tests.node import Node
with Node(is_warm=False) as node:  # workers end when they have been idle
    node.master(), node.pod()
    slow = node.start(["cat"])
    print(node.root, flush=True)
    time.sleep(60)
"""


def test_nothing_of_a_node_outlives_its_process_even_when_that_is_killed(node: Node) -> None:
    process = subprocess.Popen([sys.executable, "-c", KEEPER], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    root = Path(process.stdout.readline().decode().strip())
    assert (root / "run/netns/pod1").exists()
    namespace = os.readlink(root.parent / "ns/net")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert until(lambda: namespace not in namespaces())


def namespaces() -> set[str]:
    """The network namespaces that any process is in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    return found


def test_a_node_is_unseen_by_the_machine(node: Node) -> None:
    here = set(os.listdir("/sys/class/net"))
    mounts = Path("/proc/self/mountinfo").read_text()
    node.master("ens2f0")
    node.pod("pod-of-a-test")
    assert (set(os.listdir("/sys/class/net")), Path("/proc/self/mountinfo").read_text()) == (here, mounts)
    assert not Path("/run/netns/pod-of-a-test").exists()
    seen = node.run(["ls", "/sys/class/net"]).stdout.decode().split()
    assert {"ens2f0", "lo"} == set(seen)


def test_leftovers_names_whatever_is_there_or_missing(node: Node) -> None:
    node.master("ens2f0")
    pod = node.pod()
    assert node.leftovers() == []
    pod.view.add_veth("net1", "net2")
    node.host.add_veth("stray0", "stray1")
    node.write(f"{STATE}/attachments/n:c1:net1:link", {})
    links = ["host: link stray0", "host: link stray1", "pod1: link net1", "pod1: link net2"]
    assert node.leftovers() == ["file railcni/attachments/n:c1:net1:link", *links]
    node.remember()
    node.host.delete("ens2f0")
    assert node.leftovers() == ["missing: host: link ens2f0"]


def test_a_link_is_the_same_before_and_after_the_kernel_has_set_what_it_sets_later(node: Node) -> None:
    node.host.add_veth("early", "peer")
    with node.host.rtnl() as ipr:
        ipr.link("set", index=ipr.link_lookup(ifname="early")[0], state="down")
    down = node.host.link("early")
    assert not any(a.text.startswith("fe80:") for a in down.addresses)
    node.host.set("early", state="up")
    assert until(lambda: any(a.text.startswith("fe80:") for a in node.host.link("early").addresses))
    assert replace(down, up=True) == node.host.link("early") != down
    node.host.add_address("early", "10.9.0.1/24")
    assert replace(down, up=True) != node.host.link("early")
