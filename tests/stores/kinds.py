"""The stores under test: the contract suite and the state machine run over every member of KINDS."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from cni.spec.request import Attachment
from ipam.stores.base import Owner, Store, Want
from ipam.stores.file import FileStore

_MEMORY = "/dev/shm"  # thousands of transactions: a disk would spend its time on fsync


class FileKind:
    """File stores, each in a directory of its own."""

    name = "file"

    def make(self) -> tuple[Callable[[], Store], Callable[[], None]]:
        """(what opens one new store, again and again; what removes it)."""
        directory = tempfile.mkdtemp(prefix="railcni-store-", dir=_MEMORY if Path(_MEMORY).is_dir() else None)
        return lambda: FileStore(directory), lambda: shutil.rmtree(directory)


KINDS = [FileKind()]


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
) -> Owner:
    return Owner(Attachment(network, container, ifname), pod, node, boot_id, netns, sequence)


def want(value: int, pool: str = "pool", *, family: int = 4, scope: str | None = "") -> Want:
    return Want(pool, family, value, scope)
