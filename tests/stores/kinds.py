"""The stores under test: the contract suite and the state machine run over every member of KINDS."""

from __future__ import annotations

import atexit
import ipaddress
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.addresslease.objects import name_of
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.resources import POOLS
from ipam.stores.base import Claimed, OutcomeUnknown, Store, Taken, Unknown
from ipam.stores.etcd import EtcdStore
from ipam.stores.file import FileStore
from ipam.stores.ippool import KubernetesStore, locks
from ipam.stores.ippool.objects import new_pool
from tests import etcd
from tests.stores import etcd_dump, kubernetes_proxy
from tests.stores.kubernetes_api import ApiServer
from tests.stores.unwell import Unwell, in_turn

_MEMORY = "/dev/shm"  # thousands of transactions: a disk would spend its time on fsync


class FileKind:
    """File stores, each in a directory of its own."""

    name = "file"
    unwell = False
    leaf = 4096  # addresses that are skipped as one when all are taken
    examples = 6  # runs of the state machine
    cools_scopes = True  # whether an address that cools does so in other pools of its scope
    searches_scopes = True  # whether a search sees the leases of other pools of the scope
    remembers_beside = True  # whether an address that cools still does when another has it, and has left it again

    def unusable(self) -> str:
        """Why there can be no such store here; "" when there can."""
        return ""

    def make(self) -> tuple[Callable[[], Store], Callable[[], None]]:
        """(what opens one new store, again and again; what removes it)."""
        directory = tempfile.mkdtemp(prefix="railcni-store-", dir=_MEMORY if Path(_MEMORY).is_dir() else None)
        return lambda: FileStore(directory), lambda: shutil.rmtree(directory)


class PatientEtcdStore(EtcdStore):
    """An etcd store of an unwell member: a claim that was left open is made again, as ipam.acquire does."""

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Any:
        while isinstance(answer := super().claim(wants, owner, instead_of), Unknown):
            owner.sequence += 1
        return answer

    def release(self, leases: Sequence[Lease]) -> int:
        """A second request finds nothing, when the reply to the first was lost."""
        there = sum(lease.key() in [held.key() for held in self.find(lease.attachment)] for lease in _distinct(leases))
        super().release(leases)
        return there


class EtcdKind:
    """etcd stores, each under a prefix of its own in one real etcd. Before an `unwell` one each third change falls ill."""

    name = "etcd"
    leaf = 64
    examples = 3
    cools_scopes = True
    searches_scopes = True
    remembers_beside = True
    _prefixes = itertools.count()

    def __init__(self, unwell: bool = False) -> None:
        self.unwell = unwell
        self.name += ", unwell" if unwell else ""

    def unusable(self) -> str:
        return etcd.unusable()

    def make(self, whole: bool = True) -> tuple[Callable[[], Store], Callable[[], None]]:
        """`whole`: in the end all keys must belong together."""
        cluster = etcd.shared(etcd.LARGE)
        unwell = Unwell(cluster.members[0].port, True, in_turn(3)).__enter__() if self.unwell else None
        endpoints = [f"http://127.0.0.1:{unwell.port}"] if unwell else cluster.endpoints
        store_ref = description(endpoints, prefix=f"/railcni-{os.getpid()}-{next(self._prefixes)}")
        opened: list[EtcdStore] = []

        def reopen() -> EtcdStore:
            opened.append((PatientEtcdStore if unwell else EtcdStore)(store_ref, seconds=20))
            return opened[-1]

        def remove() -> None:
            for store in opened:
                store.close()
            if unwell:
                unwell.__exit__()
            assert not whole or etcd_dump.faults(etcd_dump.dump(cluster.endpoints[0], store_ref["prefix"])) == []

        return reopen, remove


def description(endpoints: list[str], **more: str) -> dict[str, Any]:
    """The reference that ipam.stores.ref_of makes to an etcd store."""
    absent = dict.fromkeys(("user", "password", "ca", "cert", "key"), "")
    return {"kind": "etcd", "endpoints": endpoints, "prefix": "/railcni", **absent, **more}


class AnyNames(Api):
    """An API server whose pools are called anything."""

    __slots__ = ()

    def get(self, resource: str, name: str, query: str = "", namespace: str = "") -> tuple[dict[str, Any], int]:
        document, size = super().get(resource, encoded(resource, name), query, namespace)
        return decoded(resource, document), size

    def list_all(self, resource: str, *choice: Any, **more: Any) -> list[dict[str, Any]]:
        return [decoded(resource, document) for document in super().list_all(resource, *choice, **more)]

    def patch(self, resource: str, name: str, operations: list[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
        return super().patch(resource, encoded(resource, name), operations, namespace)

    def make_pool(self, want: Want) -> None:
        """An empty pool that holds any address."""
        cidr = "0.0.0.0/0" if want.family == 4 else f"{ipaddress.IPv6Address(want.value >> 62 << 62)}/66"
        self.create(POOLS, new_pool(encoded(POOLS, want.pool), cidr, {}))


def _distinct(leases: Sequence[Lease]) -> list[Lease]:
    return list({lease.key(): lease for lease in leases}.values())


def encoded(resource: str, name: str) -> str:
    return "x" + name.encode().hex() if resource == POOLS else name


def decoded(resource: str, document: dict[str, Any]) -> dict[str, Any]:
    if resource == POOLS:
        document["metadata"]["name"] = bytes.fromhex(document["metadata"]["name"][1:]).decode()
    return document


class RecordingStore(KubernetesStore):
    """A Kubernetes store with the records that a node would keep of its claims. `well` names a server that is always well, at
    which pools are made."""

    def __init__(self, store_ref: dict[str, Any], records: list[Lease], well: str) -> None:
        super().__init__(store_ref, 20, lambda: records)
        self._well = AnyNames(well, 20, "")
        self.api.__class__ = AnyNames
        self._records = records

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Any:
        def attempt(instead_of: Sequence[Lease]) -> Any:
            with self.session():
                for want in wants:
                    if self._pool(want.pool) is None:
                        self._well.make_pool(want)
                        self._forget_pool(want.pool)
                return super(RecordingStore, self).claim(wants, owner, instead_of)

        former = list(self._records)
        leases = [Lease(want, owner) for want in wants]
        answer = certain(self, attempt, lambda: self._records.extend(leases), wants, owner, instead_of)
        self._records[:] = [*former, *answer.leases] if isinstance(answer, Claimed) else former
        return answer

    def release(self, leases: Sequence[Lease]) -> int:
        """Made again after an outcome that an unwell server leaves open, as the next call of a node does."""
        there = sum(self._has(lease) for lease in _distinct(leases))
        try:
            return super().release(leases)
        except OutcomeUnknown:
            self.release(leases)
            return there

    def settle(self, attachment: Attachment, sequence: int) -> None:
        try:
            super().settle(attachment, sequence)
        except OutcomeUnknown:
            self.settle(attachment, sequence)

    def _has(self, lease: Lease) -> bool:
        with self.session():
            return self._is_there(lease)


class ApiKind:
    """Stores in an API server, each in a namespace of its own. Of an `unwell` one each third change falls ill, and the
    watch cache stays empty."""

    name = ""
    examples = 4
    _namespaces = itertools.count()
    _server: ApiServer | None = None
    _before: Unwell

    def __init__(self, unwell: bool = False) -> None:
        self.unwell = unwell
        self.name += ", unwell" if unwell else ""
        self._port = 0

    def unusable(self) -> str:
        return "a real server is well" if self.unwell and kubernetes_proxy.path() else ""

    def kubeconfig(self) -> tuple[Path, str, str]:
        """A new directory, and in it a kubeconfig that names a new namespace, and one for the same server while it is well."""
        if self._server is None:
            self._server = kubernetes_proxy.start()
            atexit.register(self._server.close)
            self._port = self._server.port
            if self.unwell:
                self._before = Unwell(self._server.port, False, in_turn(3)).__enter__()
                self._port = self._before.port
        if self.unwell:
            self._before.choose = in_turn(3)  # so that a run of the state machine can be repeated
            self._server.lag()
        directory = Path(tempfile.mkdtemp(prefix="railcni-kubeconfig-"))
        well = Path(self._server.kubeconfig(directory, f"railcni-{os.getpid()}-{next(self._namespaces)}"))
        path = directory / "unwell.kubeconfig"
        path.write_text(well.read_text().replace(f":{self._server.port}", f":{self._port}"))
        return directory, str(path), str(well)


class KubernetesKind(ApiKind):
    """Stores in IPPools."""

    name = "kubernetes"
    leaf = 64
    cools_scopes = False
    searches_scopes = False
    remembers_beside = True

    def make(self) -> tuple[Callable[[], Store], Callable[[], None]]:
        directory, kubeconfig, well = self.kubeconfig()
        locks.DIRECTORY = str(directory / "run")
        records: list[Lease] = []
        opened: list[KubernetesStore] = []

        def reopen() -> KubernetesStore:
            opened.append(RecordingStore({"kind": "kubernetes", "kubeconfig": kubeconfig}, records, well))
            return opened[-1]

        def remove() -> None:
            for store in opened:
                store.close()
            shutil.rmtree(directory)

        return reopen, remove


class RecordingLeaseStore(AddressLeaseStore):
    """A store `addresslease` with the records that a node would keep of its claims.

    Of an attachment and an object there is one record, of the last claim: a node has one record for each attachment.
    """

    def __init__(self, store_ref: dict[str, Any], records: dict[tuple[str, Attachment], Lease]) -> None:
        super().__init__(store_ref, 20, lambda: list(records.values()))
        self._records = records

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Any:
        answer = super().claim(wants, owner, instead_of)
        while isinstance(answer, Unknown):  # by an unwell server
            answer = super().claim(wants, owner, instead_of)
        if isinstance(answer, Claimed):
            for lease in answer.leases:
                name = name_of(lease)
                self._records[name, lease.attachment] = lease
        return answer

    def find(self, attachment: Attachment) -> list[Lease]:
        """As without a record: here leases of an attachment come and go one by one."""
        recorded, self._known = self._known, list
        try:
            return super().find(attachment)
        finally:
            self._known = recorded


class AddressLeaseKind(ApiKind):
    """Stores with an object for each address."""

    name = "addresslease"
    leaf = 256
    cools_scopes = True
    searches_scopes = True
    remembers_beside = False

    def make(self) -> tuple[Callable[[], Store], Callable[[], None]]:
        directory, kubeconfig, _ = self.kubeconfig()
        records: dict[tuple[str, Attachment], Lease] = {}
        opened: list[AddressLeaseStore] = []

        def reopen() -> AddressLeaseStore:
            opened.append(RecordingLeaseStore({"kind": "addresslease", "kubeconfig": kubeconfig}, records))
            return opened[-1]

        def remove() -> None:
            for store in opened:
                store.close()
            shutil.rmtree(directory)

        return reopen, remove


def certain(
    store: Store,
    attempt: Callable[[Sequence[Lease]], Any],
    note: Callable[[], object],
    wants: Sequence[Want],
    owner: Owner,
    instead_of: Sequence[Lease],
) -> Any:
    """The answer of `attempt`, which is made again as ipam.acquire does while an unwell server leaves its outcome open.

    `note` writes the record of the claim: a node does so before it claims.
    """
    others = {lease.place for lease in store.find(owner.attachment)} - {old.place for old in instead_of}
    answer = attempt(instead_of)
    if isinstance(answer, Unknown):
        note()
    while isinstance(answer, Unknown):
        concerned = {owner.attachment, *(old.attachment for old in instead_of)}
        held = [lease for attachment in sorted(concerned, key=str) for lease in store.find(attachment)]
        places = {place.place for place in (*wants, *instead_of)} - others
        answer = attempt([lease for lease in held if lease.place in places])
        if isinstance(answer, Taken):  # an ADD that finds no other addresses releases what its first claim has left
            new = {want.place for want in wants} - others - {old.place for old in instead_of}
            store.release([lease for lease in store.find(owner.attachment) if lease.place in new])
    return answer


Kind = FileKind | EtcdKind | KubernetesKind | AddressLeaseKind
KINDS: list[Kind] = [
    FileKind(),
    EtcdKind(),
    EtcdKind(unwell=True),
    KubernetesKind(),
    KubernetesKind(unwell=True),
    AddressLeaseKind(),
    AddressLeaseKind(unwell=True),
]


def owner(
    container: str = "c1",
    sequence: int = 1,
    *,
    ifname: str = "net1",
    network: str = "rdma-net",
    pod: tuple[str, str, str] = ("", "", ""),
    node: str = "node-1",
    boot_id: str = "boot-1",
    netns: str = "/run/netns/x",
    machine: str = "",
) -> Owner:
    return Owner(Attachment(network, container, ifname), pod, node, boot_id, netns, sequence, machine)


def spaced(container: str = "c1", sequence: int = 1, **more: Any) -> Owner:
    """An owner with room before the next sequence, for a store whose claims are made again with a later one."""
    return owner(container, sequence * 101, **more)


def want(value: int, pool: str = "pool", *, family: int = 4, scope: str | None = "") -> Want:
    return Want(pool, family, value, scope)
