"""A server that never ends its reply: each call ends with an error that names the server, in little memory.

A network can name the server (`etcd_host`, the kubeconfig), so a node must bear whatever it says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.stores.kinds import description
from tests.stores.test_etcd_calls import Server, raw
from tests.stores.test_kubeconfig import write as kubeconfig

ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 700  # for a call; it would take all that there is

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MIB = b"x" * (1 << 20)
FIELDS = b"".join(b"X-%d: y\r\n" % i for i in range(10_000))


SAID: dict[str, tuple[bytes, bytes, str]] = {  # once, then for ever, and a word of the error
    "headers": (OK, FIELDS, "not HTTP"),
    "one header": (OK + b"X: ", MIB, "not HTTP"),
    "interim replies": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "headers"),
    "interim replies of early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 1000, "headers"),
    "chunks": (CHUNKED, b"100000\r\n" + MIB + b"\r\n", ""),
    "chunks that are too large together": (CHUNKED + b"1\r\nx\r\n4000000\r\n", MIB, "KiB of data"),
    "chunks of one octet": (CHUNKED, b"1\r\nx\r\n" * 10_000, "sizes of chunks"),
    "an extension of a chunk": (CHUNKED + b"1;a=", MIB, "not HTTP"),
    "extensions of chunks": (CHUNKED, b"1;%s\r\nx\r\n" % (b"e" * 10_000), "sizes of chunks"),
    "trailers": (CHUNKED + b"0\r\n", FIELDS, "headers"),
    "data until the end": (OK + b"\r\n", MIB, ""),
    "data of a known size": (OK + b"Content-Length: 100000000000\r\n\r\n", MIB, "KiB of data"),
    "a chunk of a known size": (CHUNKED + b"fffffffff\r\n", MIB, "KiB of data"),
}
# Each of them meets the bound of another case, later.
LIKE_OTHERS = ("interim replies of early hints", "chunks", "data until the end", "a chunk of a known size")
LONG: dict[str, Callable[[], bytes]] = {  # seconds to read what the server says; made by the test alone
    "lists": lambda: raw(b"[" + b"[]," * 20_000_000 + b"[]]"),
    "as many values as are read, in wide letters": lambda: raw(
        b'["\xf0\x9f\x98\x80' + b"x" * 50_000_000 + b'"' + b',{"":[]}' * 1_330_000 + b"]"
    ),
}
CALL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam.stores import open_store
from ipam.stores.base import READ
import json
store = open_store(json.loads(sys.argv[2]), READ, seconds=float(sys.argv[3]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    store.find(Attachment("net", "c1", "net1"))
except CniError as fault:
    print(json.dumps([fault.msg, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10]))
"""


def store_of(kind: str, port: int, folder: Path) -> dict[str, object]:
    if kind == "etcd":
        return description([f"http://127.0.0.1:{port}"])
    path = kubeconfig(folder / "config", cluster={"server": f"http://127.0.0.1:{port}"})
    return {"kind": kind, "kubeconfig": path, "namespace": "kube-system"}


# One client of HTTP reads for both stores, each of which decodes the documents itself; each long document takes seconds.
CASES = [
    *(pytest.param("etcd", case, marks=pytest.mark.long if case in LIKE_OTHERS else ()) for case in SAID),
    ("addresslease", "headers"),
    *(pytest.param(kind, case, marks=pytest.mark.long) for case in LONG for kind in ("etcd", "addresslease")),
]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_a_server_that_never_ends_its_reply_is_an_error_that_names_it_and_takes_little_memory(
    kind: str, case: str, tmp_path: Path
) -> None:
    once, more, word = (b"", LONG[case](), "") if case in LONG else SAID[case]
    server = Server(*[chain([once] if once else [], repeat(more)) for _ in range(100)])
    store_ref = store_of(kind, server.port, tmp_path)
    argv = [sys.executable, "-IS", "-c", CALL, str(ROOT), json.dumps(store_ref), "3" if case in LONG else "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    server.close()
    assert done.returncode == 0, done.stderr[-2000:]
    said, mib = json.loads(done.stdout)
    assert f"127.0.0.1:{server.port}" in said
    assert word in said or "timed out" in said, said  # a busy machine may be too slow for the bounds
    assert mib < MOST_MIB, (said, mib)
