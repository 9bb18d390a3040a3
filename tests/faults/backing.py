"""Where the leases of a scene stand: in a file of the node, in a real etcd member, or in an API server.

The server is behind a gate, and what it holds is put back before each case, and is a part of the state after it."""

import base64
import ipaddress
import json
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import etcd
from tests.faults.gate import Answer, Gate
from tests.faults.state import Found, Lease
from tests.node import Node, until
from tests.stores import etcd_dump, kubernetes_proxy
from tests.stores.kubernetes_api import ADDRESSES, KINDS, VERSION, group_of

KUBECONFIG = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
NAMESPACE = "kube-system"
POOLS, RESERVATIONS = "ippools", "overlappingrangeipreservations"
_POLICY = "/etc/cni/net.d/whereabouts.d/railcni.json"
_MEMORY = "/dev/shm"
_SEQUENCE = len(f"{0:016x}")
_NOISE = ("resourceVersion", "uid", "creationTimestamp", "managedFields", "generation", "namespace")


class FileBacking:
    """The file store: all of it is in the state directory, which the scene reads and puts back itself."""

    name = "file"
    atomic = True  # a claim of several addresses is made as a whole or not at all
    gate: Gate | None = None

    def __init__(self, node: Node, network: str) -> None:
        pass

    def config(self) -> dict[str, Any]:
        """The keys of the `ipam` block that name the store."""
        return {"datastore": "file"}

    def read(self) -> Found | None:
        """What the store holds; None: it is in the state directory."""
        return None

    def lines(self) -> list[tuple[str, bytes]]:
        """All that it holds that can matter, as names and texts."""
        return []

    def save(self) -> None:
        """Keep what it holds, for `restore`."""

    def restore(self) -> None:
        """Hold again what it held at `save`."""

    def close(self) -> None:
        """End the server."""


class Served(FileBacking):
    """A store behind a gate."""

    port = 0
    gate: Gate

    def pause(self) -> None:
        """From now on nothing is served, and connections stay."""
        raise NotImplementedError

    def resume(self) -> None:
        """Serve again, also what has come meanwhile."""
        raise NotImplementedError

    def die(self) -> None:
        """The server is gone; connections are refused."""
        self.gate.close()

    def revive(self) -> None:
        self.gate.open()

    def long_ago(self, target: str) -> Answer | None:
        """What a read of `target` would have answered before there was any lease; None when it is not known."""
        return None


class EtcdBacking(Served):
    """One real member, whose data outlives it."""

    name = "etcd"
    port = 2379

    def __init__(self, node: Node, network: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="faults-etcd-", dir=_MEMORY if Path(_MEMORY).is_dir() else None)
        policy = node.path(_POLICY)
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text('{"storeHosts": ["127.0.0.1"]}')
        client, self._peer = etcd.free_ports(2)
        self.url = f"http://127.0.0.1:{client}"
        self._start()
        self.gate = Gate(node.host, self.port, client)

    def _start(self) -> None:
        argv = ["setpriv", "--pdeathsig", "KILL", "etcd", "--data-dir", self._folder, "--logger=zap"]
        argv += ["--log-level=error", "--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        argv += ["--listen-peer-urls", f"http://127.0.0.1:{self._peer}", "--unsafe-no-fsync"]
        argv += ["--heartbeat-interval=20", "--election-timeout=200"]
        none = subprocess.DEVNULL
        self._process = subprocess.Popen(argv, stdin=none, stdout=none, stderr=none)
        if not until(self._serves, 30):
            raise RuntimeError("etcd does not serve")

    def _serves(self) -> bool:
        try:
            etcd.post(self.url, "kv/range", {"key": "YQ=="})
        except OSError:
            return False
        return True

    def config(self) -> dict[str, Any]:
        return {"datastore": "etcd", "etcd_host": f"127.0.0.1:{self.port}"}

    def read(self) -> Found:
        entries = self._entries()
        found = [
            Lease(d["containerID"], d["address"], d["pool"], d["network"], d["ifname"])
            for d in etcd_dump.leases(entries)
        ]
        return Found(sorted(found), etcd_dump.faults(entries))

    def _entries(self) -> dict[str, str]:
        self.gate.quiet()
        return etcd_dump.dump(self.url)

    def lines(self) -> list[tuple[str, bytes]]:
        """The keys with their sequences as decimal numbers: as all the other places have them."""
        found = []
        for key, value in self._entries().items():
            kind = key.partition("/")[0]
            if kind in ("attachment", "void"):
                key = key[:-_SEQUENCE] + str(int(key[-_SEQUENCE:], 16))
            found.append((kind, f"{key} {value}".encode()))
        return found

    def save(self) -> None:
        self._saved = self._entries()

    def restore(self) -> None:
        if self._entries() != self._saved:
            start = b"/railcni/v1/"
            keys = {"key": _text(start), "range_end": _text(start[:-1] + b"0")}
            puts = [
                {"request_put": {"key": _text(start + key.encode()), "value": _text(value.encode())}}
                for key, value in self._saved.items()
            ]
            etcd.post(self.url, "kv/deleterange", keys)
            if puts:
                etcd.post(self.url, "kv/txn", {"success": puts})

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def die(self) -> None:
        self._process.kill()
        self._process.wait()
        super().die()

    def revive(self) -> None:
        self._start()
        super().revive()

    def close(self) -> None:
        self.gate.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class KubernetesBacking(Served):
    """The API server for tests, or before a real one where a kubeconfig for that is given."""

    name = "kubernetes"
    port = 8001
    atomic = False

    def __init__(self, node: Node, network: str) -> None:
        self._network = network
        self._server = kubernetes_proxy.start()
        self._running = threading.Event()
        self._running.set()
        self._server.faults = lambda method, resource, number: self._wait()
        path = node.path(KUBECONFIG)
        path.parent.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            text = Path(self._server.kubeconfig(Path(folder), NAMESPACE)).read_text()
        path.write_text(text.replace(self._server.url, f"http://127.0.0.1:{self.port}"))
        self.gate = Gate(node.host, self.port, self._server.port)

    def _wait(self) -> None:
        self._running.wait(60)

    def config(self) -> dict[str, Any]:
        return {"datastore": "kubernetes", "kubernetes": {"kubeconfig": KUBECONFIG}}

    def read(self) -> Found:
        found = Found()
        held: dict[str, str] = {}
        for pool in self.objects(POOLS):
            first, length = pool["spec"]["range"].split("/")
            network = ipaddress.ip_network(f"{first}/{length}")
            for offset, entry in (pool["spec"].get("allocations") or {}).items():
                address = str(network.network_address + int(offset))
                lease = Lease(entry["id"], address, pool["metadata"]["name"], self._network, entry["ifname"])
                found.leases.append(lease)
                held[address] = entry["id"]
        reserved = {_address(r["metadata"]["name"]): r["spec"]["containerid"] for r in self.objects(RESERVATIONS)}
        for address in sorted({*held, *reserved}):
            if address not in reserved:
                found.unfinished.append(f"{address} of {held[address]} is not reserved")
            elif address not in held:
                found.late.append(f"{address} is reserved for {reserved[address]}, and allocated to nobody")
            elif reserved[address] != held[address]:
                found.faults.append(f"{address} is reserved for {reserved[address]}, and allocated to {held[address]}")
        found.leases.sort()
        return found

    def lines(self) -> list[tuple[str, bytes]]:
        found = []
        for kind in KINDS:
            for document in self.objects(kind):
                plain = {k: v for k, v in document["metadata"].items() if k not in _NOISE}
                found.append((kind, json.dumps([plain, document["spec"]], sort_keys=True).encode()))
        return found

    def objects(self, kind: str) -> list[dict[str, Any]]:
        self.gate.quiet()
        found: list[dict[str, Any]] = self.ask("GET", kind)["items"]
        return sorted(found, key=lambda document: str(document["metadata"]["name"]))

    def ask(self, method: str, path: str, document: Any = None, kind: str = "application/json") -> Any:
        """A request past the gate, for an object or all of a kind."""
        group = group_of(path.partition("/")[0])
        url = f"{self._server.url}/apis/{group}/{VERSION}/namespaces/{NAMESPACE}/{path}"
        body = json.dumps(document).encode() if document else None
        request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def save(self) -> None:
        self._saved = {kind: self.objects(kind) for kind in KINDS}

    def restore(self) -> None:
        for kind, saved in self._saved.items():
            now = {document["metadata"]["name"]: document for document in self.objects(kind)}
            for document in saved:
                standing = now.pop(document["metadata"]["name"], None)
                if standing is None or _plain(standing) != _plain(document):
                    if standing:
                        self.ask("DELETE", f"{kind}/{document['metadata']['name']}")
                    self.ask(
                        "POST",
                        kind,
                        {"apiVersion": f"{group_of(kind)}/{VERSION}", "kind": KINDS[kind], **_plain(document)},
                    )
            for name in now:
                self.ask("DELETE", f"{kind}/{name}")

    def long_ago(self, target: str) -> Answer | None:
        kind, _, name = target.partition("?")[0].rpartition(f"/{NAMESPACE}/")[2].partition("/")
        found = next((d for d in self._saved[kind] if d["metadata"]["name"] == name), None)
        if not found or kind != POOLS:
            return None
        metadata = found["metadata"] | {"resourceVersion": "1"}
        return 200, json.dumps(found | {"metadata": metadata, "spec": found["spec"] | {"allocations": {}}}).encode()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def close(self) -> None:
        self.resume()
        self.gate.close()
        self._server.close()


class AddressLeaseBacking(KubernetesBacking):
    """An object for each address, in the same API server."""

    name = "addresslease"

    def config(self) -> dict[str, Any]:
        return {"datastore": "addresslease", "kubernetes": {"kubeconfig": KUBECONFIG}}

    def read(self) -> Found:
        found = Found()
        for document in self.objects(ADDRESSES):
            spec, name = document["spec"], document["metadata"]["name"]
            if spec["state"] == "held":
                found.leases.append(
                    Lease(spec["containerID"], spec["address"], spec["pool"], spec["network"], spec["ifname"])
                )
            if _address(name) != spec["address"]:
                found.faults.append(f"{name} says {spec['address']}")
        found.leases.sort()
        return found

    def long_ago(self, target: str) -> Answer | None:
        """Only a list may be answered from a cache that is behind, and only when that is asked for."""
        if "resourceVersion=0" not in target:
            return None
        return 200, json.dumps({"kind": "AddressLeaseList", "metadata": {"resourceVersion": "1"}, "items": []}).encode()


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in document["metadata"].items() if k not in _NOISE}
    return {"metadata": metadata, "spec": document["spec"]}


def _address(name: str) -> str:
    """The address that a reservation's name stands for: of a network without a name."""
    return name if "." in name else str(ipaddress.ip_address(name.replace("-", ":")))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


BACKINGS: dict[str, Callable[[Node, str], FileBacking]] = {
    backing.name: backing for backing in (FileBacking, EtcdBacking, KubernetesBacking, AddressLeaseBacking)
}


def unavailable(store: str) -> str:
    """Why there can be no such store here, and what would make it possible; "" when it can."""
    return etcd.unusable() if store == "etcd" else ""
