"""Agents as processes beside an API server for tests, each on a node of its own in a directory."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cni.shared.kernel.node import boot_id
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam.leases import PART, Lease, Owner, Want, recorded_document
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.addresslease import objects as addresses
from ipam.stores.base import Claimed
from ipam.stores.ippool.objects import entry_of, reservation
from tests import command
from tests.node import page, until
from tests.stores.kubernetes_api import ADDRESSES, ApiServer

POOLS, RESERVATIONS, POOL = "ippools", "overlappingrangeipreservations", "10.0.0.0-24"
TEN = 10 << 24
GRACE = 0.15
GONE = "/run/netns/no-such-namespace"
IFNAME = "of-rig"  # no namespace of the machine has such a link: without a record, all are looked into for the address


class Agent:
    """`railcni agent` on the node `name` of `rig`, with short times unless `options` say otherwise."""

    def __init__(self, rig: Rig, name: str, *options: str) -> None:
        self.host = rig.host(name)
        given = {option.partition("=")[0] for option in options}
        place = ["--plugin-dir=/opt/cni/bin", f"--root={self.host}", "--state-dir=/state", f"--node={name}"]
        if "--kubeconfig" not in given:
            place += [f"--service-account={rig.account}", f"--api-server={rig.server.url}"]
        times = [] if "--no-collect" in given else ["--lease-seconds=2"]
        if "--no-collect" not in given or "--plugin-account" in given:
            times += [f"--grace={GRACE}", *([] if "--once" in given else ["--every=0.05"])]
        if "--once" not in given:
            place.append("--listen=127.0.0.1:0")
        argv = ["agent", *place, *times, *options]
        said, stderr = os.pipe()
        with open(os.devnull, "r+b") as nothing, os.fdopen(stderr, "wb"):
            self.process = command.start(argv, [nothing.fileno(), nothing.fileno(), stderr], env=os.environ)
        self.said = os.fdopen(said)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.said:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def says(self, text: str, seconds: float = 15) -> bool:
        return until(lambda: text in self.log, seconds)

    def get(self, path: str) -> tuple[int, str]:
        assert self.says("url=http://"), self.log
        found = re.search(r"url=(http://\S+)/healthz", self.log)
        assert found
        return page(found[1] + path)

    def metric(self, name: str) -> float | None:
        """The sum of a metric's values, None when it has none."""
        found = [line for line in self.get("/metrics")[1].splitlines() if re.match(rf"{name}(\{{|\s)", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found) if found else None

    def end(self, number: int = signal.SIGTERM) -> float:
        """End it by a signal; how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=20)
        took = time.monotonic() - began
        self._reader.join(10)
        self.said.close()
        return took

    def passes(self, count: int = 2) -> None:
        """Wait until the collector has done so many passes more."""
        done = self.metric("railcni_collector_passes_total") or 0
        assert until(lambda: (self.metric("railcni_collector_passes_total") or 0) >= done + count, 20), self.log

    def settles(self, read: Callable[[], object], wanted: object, passes: int = 2) -> bool:
        """Whether `read` gets to answer that, and still does after so many passes more."""
        came = until(lambda: read() == wanted, 20)
        self.passes(passes)
        return came and read() == wanted


class Rig:
    """The API server, the service account's folder, and the agents that were started."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.account = directory / "account"
        self.account.mkdir()
        (self.account / "token").write_text("token.number.1\n")
        self._agents: list[Agent] = []

    def agent_on_the_host(self, name: str, *options: str) -> Agent:
        """One that sees this machine's namespaces and boot."""
        host = self.host(name)
        return self.agent(name, "--root=/", f"--state-dir={host}/state", f"--conf-dir={host}/etc/cni/net.d", *options)

    def host(self, name: str) -> Path:
        """The root directory of a node."""
        root = self.directory / name
        for folder in ("etc/cni/net.d", "opt/cni/bin", "run/netns"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        return root

    def agent(self, name: str, *options: str) -> Agent:
        agent = Agent(self, name, *options)
        self._agents.append(agent)
        return agent

    def close(self) -> None:
        for agent in self._agents:
            if not agent.said.closed:
                agent.end(signal.SIGKILL)

    # --- what stands in the cluster and on the nodes ---

    def allocate(self, **owners: tuple[str, str] | dict[str, str]) -> None:
        """Have the pool hold what is named `a1`: offset 1 for the container and pod, or for an entry as it stands."""
        allocations = {}
        for key, value in owners.items():
            entry = {"id": value[0], "podref": value[1], "ifname": IFNAME} if isinstance(value, tuple) else value
            allocations[key[1:]] = entry
        self.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": allocations})

    def reserve(self, offset: int, owner: Owner | None = None, pod: str = "", name: str = "") -> None:
        """A reservation as ours, of `owner`, or as Go's, of a pod alone."""
        name = name or f"10.0.0.{offset}"
        if owner is None:
            spec = {"podref": pod, "ifname": IFNAME}
            self.server.put(RESERVATIONS, "kube-system", name, spec)
            return
        document = reservation(Lease(Want(POOL, 4, TEN + offset, ""), owner))
        metadata = {key: value for key, value in document["metadata"].items() if key != "name"}
        self.server.put(RESERVATIONS, "kube-system", name, document["spec"], **metadata)

    def hold(self, kind: str, offset: int, owner: Owner, scope: str | None = "") -> None:
        """Have the store of `kind` hold a lease of `owner`, as our plugin leaves it."""
        lease = Lease(Want(POOL, 4, TEN + offset, scope), owner)
        if kind == "addresslease":
            document = addresses.document(lease)
            metadata = {key: value for key, value in document["metadata"].items() if key != "name"}
            self.server.put(ADDRESSES, "kube-system", document["metadata"]["name"], document["spec"], **metadata)
            return
        spec = self.server.spec(POOLS, POOL) or {"range": "10.0.0.0/24", "allocations": {}}
        self.server.put(
            POOLS, "kube-system", POOL, {**spec, "allocations": {**spec["allocations"], str(offset): entry_of(owner)}}
        )
        if scope is not None:
            self.reserve(offset, owner)

    def held(self, kind: str) -> list[int]:
        """The offsets of the addresses that the store of `kind` holds."""
        if kind == "kubernetes":
            return sorted(map(int, self.offsets()))
        found = ((name, self.server.spec(ADDRESSES, name)) for name in self.server.names(ADDRESSES))
        return sorted(addresses.address_of(name)[1] - TEN for name, spec in found if spec and spec["state"] == "held")

    def record(
        self,
        node: str,
        offset: int,
        owner: Owner,
        pending: bool = False,
        pool: str = POOL,
        scope: str | None = "",
        kind: str = "kubernetes",
    ) -> Attachment:
        """The record of a lease of `owner` on a node; `scope` None: enable_overlapping_ranges is off."""
        store: dict[str, Any] = {"kind": kind, "kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}
        if kind == "kubernetes":
            store["pools"] = [pool]
        want = Want(pool, 4, TEN + offset, scope)
        document = {**recorded_document(store, [want], owner), "pending": pending}
        self.records(node).write(owner.attachment, PART, document)
        if pending:
            self.records(node).remind(True)
        return owner.attachment

    def lease(self, offset: int, owner: Owner, leased: bool) -> None:
        """A release that is pending on n1, of an AddressLease or of none."""
        store = {"kind": "addresslease", "kubeconfig": self.server.kubeconfig(self.directory)}
        want = Want(POOL, 4, TEN + offset, "")
        if leased:
            opened = AddressLeaseStore({**store, "moves": True})  # tests have the range in both stores
            assert isinstance(opened.claim([want], owner), Claimed)
            opened.close()
            self.server.asked.clear()
        self.records("n1").write(owner.attachment, PART, {**recorded_document(store, [want], owner), "pending": True})
        self.records("n1").remind(True)

    def records(self, node: str) -> Records:
        state = self.host(node) / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        return Records(str(state))

    def offsets(self) -> list[str]:
        spec = self.server.spec(POOLS, POOL)
        return sorted(spec["allocations"]) if spec else []

    def reservations(self) -> list[str]:
        return self.server.names(RESERVATIONS)

    def events(self) -> list[tuple[str, str, str]]:
        """(reason, what it is about, its message)."""
        found = []
        for event in self.server.core.named("events"):
            about = event["involvedObject"]
            found.append((event["reason"], f"{about['kind']} {about['name']}", event["message"]))
        return found


def owner(container: str, pod: str, node: str = "n1", uid: str = "", netns: str = GONE, boot: str = "") -> Owner:
    namespace, _, name = pod.partition("/")
    attachment = Attachment("rdma-net", container, IFNAME)
    return Owner(attachment, (namespace, name, uid), node, boot or boot_id(), netns, 1_700_000_000_000_000_000)


def status_of(address: str) -> str:
    """A network-status that shows the address."""
    return json.dumps([{"name": "team/rdma-net", "interface": IFNAME, "ips": [address]}])
