"""The API server of a run: the one of RAILCNI_TEST_KUBECONFIG, or the one of tests/stores/kubernetes_api.py.

On a real one everything is in namespaces of this run, which are deleted in the end, and the plugins come with the token
of a service account, as whereabouts' own kubeconfig has it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.stores import http
from ipam.stores.addresslease import objects
from ipam.stores.apiserver import kubeconfig
from tests import etcd
from tests.bench.hosts import ETC
from tests.node import ROOT, until
from tests.stores.kubernetes_api import ADDRESSES, GROUP, KINDS, VERSION, group_of
from tests.stores.kubernetes_proxy import path as given

_SECONDS = 60.0
_CLIENTS = 8


class Server:
    """`with Server() as server`. `real`: a Kubernetes API server; else no figure of it tells anything of Kubernetes.

    `configuration` is the directory that nodes have as their ETC.
    """

    def __init__(self) -> None:
        self.real = bool(given())
        self._folder = tempfile.TemporaryDirectory(prefix="railcni-bench-")
        self.configuration = Path(self._folder.name)
        self._namespaces: list[str] = []
        self._made_namespaces = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._local = threading.local()
        self._config: dict[str, Any] = {}

    def __enter__(self) -> Server:
        if self.real:
            self._config = yaml.safe_load(Path(given()).read_text())
            _make_absolute(self._config, Path(given()).parent)
            self._write("own", self._config)
            own = given()
        else:
            (port,) = etcd.free_ports(1)
            argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.stores.kubernetes_api", str(port)]
            self._process = subprocess.Popen(argv, cwd=ROOT)
            self._config = _config({"server": f"http://127.0.0.1:{port}"}, {"token": "a.b.c"}, "kube-system")
            self._write("own", self._config)
            own = str(self.configuration / "own.kubeconfig")
        self._access = kubeconfig.load(own)
        for file in (ROOT / "conf/kubernetes/crds").glob("*.yaml") if self.real else ():
            document = yaml.safe_load(file.read_text())
            self.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
        assert until(self._serves, _SECONDS), f"{self._access} does not serve {GROUP}"
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._namespaces if self.real else ():
            self.send("DELETE", f"/api/v1/namespaces/{name}")
        if self._process:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def __str__(self) -> str:
        return str(self._access)

    def namespace(self, what: str, datastore: str = "kubernetes") -> Namespace:
        """A new namespace for a store of this kind."""
        name = f"railcni-bench-{os.getpid()}-{what}"
        config = self._config
        if self.real:
            self._namespaces.append(name)
            top, account = f"/api/v1/namespaces/{name}", {"metadata": {"name": "plugin"}}
            self._made("/api/v1/namespaces", {"metadata": {"name": name}})
            self._made(f"{top}/serviceaccounts", account)
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
            subject = {"kind": "ServiceAccount", "name": "plugin", "namespace": name}
            binding = {**account, "roleRef": role, "subjects": [subject]}
            self._made(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings", binding)
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
            said = self._made(f"{top}/serviceaccounts/plugin/token", {**request, "spec": {"expirationSeconds": 36000}})
            config = _config(_cluster(config), {"token": said["status"]["token"]}, name)
        else:
            config = _config(_cluster(config), {"token": "a.b.c"}, name)
        self._made_namespaces += 1
        return Namespace(self, name, self._write(name, config, datastore), datastore, self._made_namespaces)

    def send(self, method: str, target: str, document: Any = None) -> tuple[int, Any]:
        """(status, body) of a request."""
        deadline = time.monotonic() + _SECONDS
        token = self._access.token(deadline)
        headers = "Accept: application/json\r\nContent-Type: application/json\r\n"
        headers += f"Authorization: Bearer {token}\r\n" if token else ""
        body = b"" if document is None else json.dumps(document).encode()
        while True:
            connection = self._connected(deadline)
            used = connection.reused
            try:
                status, reply = connection.request(method, self._access.base + target, headers, body, deadline)
                break
            except http.ConnectionLost:
                if not used:  # else the server has closed it, because nothing came for long
                    raise
        try:
            return status, json.loads(reply)
        except ValueError:
            return status, reply.decode()

    def _connected(self, deadline: float) -> http.Connection:
        """This thread's connection."""
        connection: http.Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            access = self._access
            _, socket = http.dial([(access.host, access.port)], _SECONDS)
            connection = http.Connection(socket, access.verified_name, access.context(deadline), deadline)
            self._local.connection = connection
        return connection

    def _made(self, target: str, document: dict[str, Any]) -> Any:
        status, said = self.send("POST", target, document)
        assert status < 300, f"{target}: {said}"
        return said

    def _serves(self) -> bool:
        try:
            return all(self.send("GET", f"/apis/{group_of(kind)}/{VERSION}/{kind}?limit=1")[0] == 200 for kind in KINDS)
        except OSError:
            return False

    def _write(self, name: str, config: dict[str, Any], datastore: str = "kubernetes") -> str:
        path = f"{ETC}/{name}.kubeconfig"
        flat = {"datastore": datastore, "kubernetes": {"kubeconfig": path}}
        (self.configuration / f"{name}.kubeconfig").write_text(json.dumps(config))
        (self.configuration / f"{name}.conf").write_text(json.dumps(flat))
        return f"{ETC}/{name}.conf"


class Namespace:
    """Where the objects of one client are, and `flat`, the path on a node of the flat file that leads there."""

    def __init__(self, server: Server, name: str, flat: str, datastore: str, number: int) -> None:
        self.server = server
        self.name = name
        self.flat = flat
        self.datastore = datastore
        self._number = number

    def range(self, which: int) -> str:
        """The range 0 or 1 of this client alone: a cluster has a range in one store."""
        return f"10.{2 * self._number + which}.0.0/16"

    def _place(self, resource: str) -> str:
        return f"/apis/{group_of(resource)}/{VERSION}/namespaces/{self.name}/{resource}"

    def items(self, resource: str) -> list[dict[str, Any]]:
        status, said = self.server.send("GET", self._place(resource))
        assert status == 200, said
        found: list[dict[str, Any]] = said["items"]
        return found

    def allocations(self) -> list[tuple[str, int, dict[str, Any]]]:
        """(pool, offset, entry) of all that stands in the pools."""
        return [
            (pool["spec"]["range"], int(offset), entry)
            for pool in self.items("ippools")
            for offset, entry in pool["spec"]["allocations"].items()
        ]

    def delete_pools(self) -> None:
        """Delete the pools of this client, after which its ranges may be in another store."""
        for pool in self.items("ippools"):
            status, said = self.server.send("DELETE", f"{self._place('ippools')}/{pool['metadata']['name']}")
            assert status == 200, said

    def fill(self, cidr: str, leases: int) -> None:
        """A pool whose first addresses are leased, each with its reservation or as an object of its own."""
        if self.datastore == ADDRESSES.removesuffix("s"):
            with ThreadPoolExecutor(_CLIENTS) as clients:
                list(clients.map(partial(self._lease, cidr), range(1, leases + 1)))
            return
        base = cidr.partition("/")[0].split(".")
        entries = {
            str(i): {"id": f"full-{i}", "podref": f"full/pod-{i}", "ifname": "net1"} for i in range(1, leases + 1)
        }
        name = cidr.replace("/", "-")
        self._create("ippools", name, {"range": cidr, "allocations": entries})

        def reserve(i: int) -> None:
            spec = {"podref": f"full/pod-{i}", "ifname": "net1", "containerid": f"full-{i}"}
            address = f"{base[0]}.{base[1]}.{i >> 8}.{i & 255}"
            self._create("overlappingrangeipreservations", address, spec)

        with ThreadPoolExecutor(_CLIENTS) as clients:
            list(clients.map(reserve, range(1, leases + 1)))

    def _lease(self, cidr: str, i: int) -> None:
        first = int(ipaddress.ip_network(cidr)[0])
        owner = Owner(Attachment("bench", f"full-{i}", "net1"), ("full", f"pod-{i}", ""), "node-0", "", "", i)
        lease = Lease(Want(cidr.replace("/", "-"), 4, first + i, ""), owner)
        status, said = self.server.send("POST", self._place(ADDRESSES), objects.document(lease))
        assert status < 300, said

    def _create(self, resource: str, name: str, spec: dict[str, Any]) -> None:
        document = {
            "apiVersion": f"{group_of(resource)}/{VERSION}",
            "kind": KINDS[resource],
            "metadata": {"name": name},
            "spec": spec,
        }
        status, said = self.server.send("POST", self._place(resource), document)
        assert status < 300, said


def _config(cluster: dict[str, Any], user: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "bench", "user": user}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": namespace}}],
        "current-context": "bench",
    }


def _cluster(config: dict[str, Any]) -> dict[str, Any]:
    """The cluster of the current context."""
    contexts = {c["name"]: c["context"] for c in config["contexts"]}
    clusters: dict[str, dict[str, Any]] = {c["name"]: c["cluster"] for c in config["clusters"]}
    return clusters[contexts[config["current-context"]]["cluster"]]


def _make_absolute(config: dict[str, Any], folder: Path) -> None:
    for entry in config["clusters"]:
        authority = entry["cluster"].get("certificate-authority")
        if authority:
            entry["cluster"]["certificate-authority"] = str(folder / authority)
