"""The store in etcd beside etcd3, which reads, watches and locks in the same real server."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipam.acquire import acquire
from ipam.ranges import Range
from ipam.rules import Need
from ipam.stores.base import Claimed, Store, Taken
from tests import etcd
from tests.stores.claims import AnyAddress
from tests.stores.kinds import EtcdKind, owner, want

TEN = 10 << 24  # 10.0.0.0
MISSING = (
    ""
    if importlib.util.find_spec("etcd3")
    else "needs etcd3: .venv/bin/pip install --require-hashes -r requirements-etcd3.txt"
)
pytestmark = pytest.mark.skipif(bool(etcd.unusable() or MISSING), reason=etcd.unusable() or MISSING)
Call = Callable[..., Any]


@pytest.fixture
def etcd3() -> Iterator[Call]:
    argv = [sys.executable, Path(__file__).with_name("etcd3_client.py"), str(etcd.shared(etcd.LARGE).members[0].port)]
    environ = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=environ, stdin=pipe, stdout=pipe, text=True) as process:

        def call(*request: str) -> Any:
            print(json.dumps(request), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline() or f'"no reply to {request[0]}"')  # type: ignore[union-attr]

        yield call


@pytest.fixture
def store() -> Iterator[Store]:
    open_store, remove = EtcdKind().make()
    yield open_store()
    remove()


@pytest.fixture
def root(store: Store) -> str:
    return f"{store.record()['prefix']}/v1/"


def given(store: Store, container: str, sequence: int) -> int:
    """The last octet of the address that an ADD gets from 10.0.0.0/24."""
    need, terms = Need(Range(4, TEN, 24), "pool", ""), AnyAddress()
    return acquire(store, [need], owner(container, sequence), terms)[0] - TEN


def test_etcd3_reads_what_the_store_lists_and_each_claim_as_one_change(store: Store, etcd3: Call, root: str) -> None:
    for i in range(5):
        second = want(0xFD << 120 | i, "six", family=6, scope=None)
        assert isinstance(store.claim([want(TEN + i), second], owner(f"c{i}", i, pod=("ns", f"web{i}", "u"))), Claimed)
    store.release(store.find(owner("c3").attachment))
    values = [json.loads(value) for _, value, _ in etcd3("entries", f"{root}lease/")]
    read = [[value[field] for field in ("address", "pool", "containerID", "pod", "sequence")] for value in values]
    listed = [*store.leases("pool"), *store.leases("six")]
    assert read == [[lease.text, lease.pool, lease.container_id, [*lease.pod], lease.sequence] for lease in listed]
    changes = Counter(revision for *_, revision in etcd3("entries", root))
    assert list(changes.values()) == [9] * 4  # keys of a claim: four for each lease, and one reservation


@pytest.mark.parametrize("place", ["lease/pool/", "reserved//"])
def test_a_claim_and_a_lock_of_etcd3_exclude_each_other(store: Store, etcd3: Call, root: str, place: str) -> None:
    first, second = (f"{root}{place}{TEN + i:08x}" for i in (1, 2))
    assert etcd3("lock", first) is True
    assert isinstance(store.claim([want(TEN + 1)], owner("c1", 1)), Taken)
    assert given(store, "c1", 1) == 2
    assert etcd3("lock", second) is False
    assert etcd3("unlock", first) is True
    assert given(store, "c2", 2) == 1
    store.release(store.find(owner("c1").attachment))
    assert [etcd3("lock", second), etcd3("unlock", second)] == [True, True]


def test_a_watch_sees_each_claim_and_release_once(store: Store, etcd3: Call, root: str) -> None:
    etcd3("watch", root.removesuffix("v1/"))
    assert given(store, "c1", 1) == given(store, "c1", 2) == 1  # an ADD and its repetition
    assert sorted(etcd3("seen")) == [["PutEvent", key] for key, *_ in etcd3("entries", root)]
    leases = store.find(owner("c1").attachment)
    answer = store.claim([want(TEN + 1)], owner("c2", 3), instead_of=leases)
    assert isinstance(answer, Claimed)
    changes = [[kind, key] for kind, key in etcd3("seen") if "/lease/" in key or "/reserved/" in key]
    assert sorted(changes) == [["PutEvent", f"{root}{place}/0a000001"] for place in ("lease/pool", "reserved/")]
    keys = [key for key, *_ in etcd3("entries", root)]
    assert [store.release(answer.leases), store.release(answer.leases), store.release(leases)] == [1, 0, 0]
    assert sorted(etcd3("seen")) == [["DeleteEvent", key] for key in keys]
