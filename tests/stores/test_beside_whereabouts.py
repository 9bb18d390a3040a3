"""Go whereabouts and ours give addresses from one pool of a real API server at once, and free them: none twice, none left.

Go's DEL says success whatever becomes of it (cmd/whereabouts.go drops the error), and where pools are changed often it
gives up after 10 s: what it left so is printed, must be Go's alone, and our DEL must free it. What fails of Go's ADDs is
deleted and tried again, as a runtime does. Of ours none may fail.

RAILCNI_TEST_KUBECONFIG names an administrator's kubeconfig of the server, RAILCNI_TEST_WHEREABOUTS the Go executable;
RAILCNI_TEST_ATTACHMENTS how many each makes, 500 if nothing is said: some minutes. What was seen is printed (pytest -s).
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node import COMMAND, Node, unusable
from tests.stores import kubernetes_proxy
from tests.stores.kubernetes_api import ApiServer

GO = os.environ.get("RAILCNI_TEST_WHEREABOUTS", "")
EACH = int(os.environ.get("RAILCNI_TEST_ATTACHMENTS", "500"))
WORKERS = 4  # of each kind
DIRECTORY = "/etc/cni/net.d/whereabouts.d"
POOL, POOLS, RESERVATIONS = "10.77.0.0-16", "ippools", "overlappingrangeipreservations"

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (kubernetes_proxy.path() and GO),
        reason="wants a real API server and Go's executable: RAILCNI_TEST_KUBECONFIG=admin.kubeconfig"
        " RAILCNI_TEST_WHEREABOUTS=/path/to/whereabouts",
    ),
    pytest.mark.skipif(bool(unusable()), reason=unusable()),
]


class Side:
    """The executable of one kind, on a node of its own name."""

    def __init__(self, name: str, executable: str, node: Node, held: dict[str, str], lock: threading.Lock) -> None:
        self.name = name
        self.executable = executable
        self.node = node
        self.held = held
        self.lock = lock
        self.failed: list[str] = []
        self.twice: list[str] = []
        self.done = {"ADD": 0, "DEL": 0}
        self.seconds = {"ADD": 0.0, "DEL": 0.0}

    def call(self, verb: str, number: int, container: str = "") -> dict[str, Any]:
        container = container or f"{self.name}{number:060x}"
        block = {"type": "whereabouts", "range": "10.77.0.0/16", "configuration_path": f"{DIRECTORY}/whereabouts.conf"}
        config = {"cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "ipam": block}
        pod = f"{container[:4].strip('0')}-{int(container[-8:], 16)}"
        args = f"K8S_POD_NAMESPACE=team;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container}"
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NODENAME": f"node-{self.name}", "CNI_COMMAND": verb}
        environ |= {"CNI_CONTAINERID": container, "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/none"}
        environ |= {"CNI_PATH": str(self.node.executables), "CNI_ARGS": f"IgnoreUnknown=1;{args}"}
        # the node's files, and the network namespace of this process: the server is somewhere there
        argv = ["nsenter", f"--target={self.node.holder}", "--mount", self.executable]
        began = time.monotonic()
        done = subprocess.run(argv, input=json.dumps(config).encode(), capture_output=True, env=environ, timeout=300)
        with self.lock:
            if container.startswith(self.name):
                self.seconds[verb] += time.monotonic() - began
                self.done[verb] += done.returncode == 0
        return {"code": done.returncode, **(json.loads(done.stdout) if done.stdout.strip() else {})}

    def add(self, number: int) -> None:
        """As a runtime: what failed is deleted, and tried again as another container."""
        for attempt in range(5):
            reply = self.call("ADD", number + 100_000 * attempt)
            if reply["code"] == 0:
                break
            self.failed.append(f"ADD {number}: {reply.get('msg', reply)}")
            self.call("DEL", number + 100_000 * attempt)
        else:
            return
        address = reply["ips"][0]["address"].partition("/")[0]
        with self.lock:
            if address in self.held:
                self.twice.append(f"{address} was {self.held[address]}'s")
            self.held[address] = f"{self.name}{number + 100_000 * attempt:060x}"

    def delete(self, number: int) -> None:
        with self.lock:
            mine = [a for a, container in self.held.items() if container.startswith(self.name)]
            container = next(
                (self.held.pop(a) for a in mine if int(self.held[a][len(self.name) :], 16) % 100_000 == number), None
            )
        if container is None:
            return
        reply = self.call("DEL", int(container[len(self.name) :], 16))
        if reply["code"]:
            self.failed.append(f"DEL {number}: {reply.get('msg', reply)}")

    def first_half(self, worker: int) -> None:
        """Each of its attachments is made; every second one is deleted when three more were made."""
        mine = range(worker, EACH, WORKERS)
        for at, number in enumerate(mine):
            self.add(number)
            if at >= 3 and at % 2:
                self.delete(mine[at - 3])

    def second_half(self, worker: int) -> None:
        for number in range(worker, EACH, WORKERS):
            self.delete(number)


def at_once(sides: list[Side], part: str) -> float:
    began = time.monotonic()
    threads = [
        threading.Thread(target=getattr(side, part), args=(worker,)) for worker in range(WORKERS) for side in sides
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def test_go_and_ours_share_a_pool_at_once_and_leave_nothing(server: ApiServer) -> None:
    server.names(RESERVATIONS)
    server.spec(POOLS, POOL)  # makes the namespace
    kubeconfig = yaml.safe_load(Path(kubernetes_proxy.path()).read_text())
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = server._namespaces["kube-system"]  # type: ignore[attr-defined]
    with Node() as node:
        directory = node.path(DIRECTORY)
        directory.mkdir(parents=True)
        (directory / "whereabouts.kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        flat = {
            "datastore": "kubernetes",
            "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"},
            "log_level": "error",
        }
        (directory / "whereabouts.conf").write_text(json.dumps(flat))
        held: dict[str, str] = {}
        lock = threading.Lock()
        ours = Side("ours", str(node.executables / "whereabouts"), node, held, lock)
        go = Side("go", GO, node, held, lock)
        took = at_once([ours, go], "first_half")
        print(f"\n{EACH} ADDs of each, every second one deleted: {took:.0f} s; {len(held)} addresses are held")
        check(server, held)
        took = at_once([ours, go], "second_half")
        print(f"the others deleted: {took:.0f} s")
        for side in (ours, go):
            means = {verb: round(1000 * side.seconds[verb] / max(1, side.done[verb])) for verb in side.done}
            print(f"{side.name}: {side.done}, mean ms {means}, failed {len(side.failed)} {side.failed[:3]}")
        assert ours.twice == go.twice == []
        assert held == {}
        finish(node)
        left = allocations(server)
        print(f"left by DELs of Go's that said success: {left}")
        assert [container for container in left.values() if not container.startswith(go.name)] == []
        for container in left.values():
            assert ours.call("DEL", 0, container)["code"] == 0
        assert allocations(server) == {} and server.names(RESERVATIONS) == []
        assert ours.failed == []
        assert (ours.done, go.done["ADD"]) == ({"ADD": EACH, "DEL": EACH}, EACH)
        assert go.done["DEL"] >= EACH
        records = node.path("/var/lib/cni/railcni/attachments")
        assert [record.name for record in records.iterdir()] == []


def finish(node: Node) -> None:
    """Make the releases that a DEL of ours put off, where the server gave no answer in time."""
    records = node.path("/var/lib/cni/railcni/attachments")
    print(f"releases that DELs of ours put off: {len(list(records.iterdir()))}")
    argv = ["nsenter", f"--target={node.holder}", "--mount", *COMMAND, "ipam", "flush"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def allocations(server: ApiServer) -> dict[str, str]:
    """The containers in the pool by their addresses."""
    found = (server.spec(POOLS, POOL) or {})["allocations"]
    return {f"10.77.{int(key) >> 8}.{int(key) & 255}": entry["id"] for key, entry in found.items()}


def check(server: ApiServer, held: dict[str, str]) -> None:
    """The pool says of each address who holds it, and the reservations are of the same addresses.

    Beside these may stand what calls of Go's left: an ADD that ran out of time, a DEL that said success.
    """
    found = allocations(server)
    left = {address for address, container in found.items() if held.get(address) != container}
    reserved = set(server.names(RESERVATIONS))
    print(f"pool {POOL}: {len(found)} allocations, {len(reserved)} reservations, {len(held)} held, left by Go: {left}")
    assert held.items() <= found.items()
    assert all(found[address].startswith("go") for address in left)
    assert held.keys() <= reserved <= held.keys() | left
