"""The keys of the etcd store: whatever stands below a prefix is read, or reported by its key; and what an audit says of it."""

import subprocess

import pytest

from cni.cluster.audit import store_rules
from cni.shared.spec import codec
from cni.shared.spec.errors import StateDamaged
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.stores.etcd import keys
from ipam.stores.etcd.keys import Keys
from ipam.stores.served import to_json

ROOT = b"/railcni/v1/"
LEASE = Lease(
    Want("blue-10.0.0.0-24", 4, 10 << 24 | 7, "blue"),
    Owner(Attachment("net/a", "c1", "net1"), ("team", "web-0", "u1"), "n1", "boot", "/run/netns/a", 5, "machine"),
)
VALUE = codec.dumps(to_json(LEASE)).encode()
NO_TEXT = VALUE.replace(b"net/a", b"\\ud800")  # half of a surrogate pair, which no message could show

FOREIGN_VALUES = (b"", b"nonsense", b"\xff", b"[]", b'"pod"', b"7", b"[" * 5000, b"9" * 5000, b'{"pool": 1}', NO_TEXT)
FOREIGN_KEYS = (
    b"lease", b"lease/", b"lease/pool", b"lease/pool/", b"lease/pool/0a00000z", b"lease/pool/0a0000010",
    b"lease/v1/lease/pool/0a000001",  # a prefix below another one
    b"attachment/v1/attachment/n/c/i/pool/0a000001/0000000000000001", b"lease/pool/0a0000_1", b"lease/pool/0x000001",
    b"lease/pool/-a000001", b"lease/pool/0A000001", b"lease/pool/\xff\xff\xff\xff\xff\xff\xff\xff",
    b"lease/\xff/0a000001", b"lease/pool/0000000000000001", b"attachment/n/c/i/pool/0a000001/000000000000000z",
    b"attachment/n/c/i/pool/0a000001/0x00000000000001", b"attachment/n/c/i/pool/0a000001/0_00000000000001",
    b"attachment/n/c/i/pool/0a000001/\xff" + 15 * b"0", b"attachment/\xff/c/i/pool/0a000001/0000000000000001",
    b"attachment/n/c/\xff/pool/0a000001/0000000000000001", b"attachment/n/c/i/pool/0a00000z/0000000000000001",
    b"attachment/n/c/i/pool/0000000000000001",
)  # fmt: skip
FOREIGN_LEASES = [(b"lease/pool/0a000001", value) for value in FOREIGN_VALUES] + [(key, VALUE) for key in FOREIGN_KEYS]
FOREIGN_COOLING = [b"cooling", b"cooling/lease/pool/", b"cooling/lease/pool/0a0000_1", b"cooling/lease/pool/x"]


@pytest.mark.parametrize(("key", "value"), FOREIGN_LEASES, ids=lambda text: repr(text[:60]))
def test_a_key_of_another_program_holds_no_lease_and_is_named_with_the_remedy(key: bytes, value: bytes) -> None:
    with pytest.raises(StateDamaged) as refused:
        Keys("/railcni").read(ROOT + key, value)
    assert f"`etcdctl del {keys.shown(ROOT + key)}`" in refused.value.msg
    refused.value.msg.encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [*((k, v) for k, v in FOREIGN_LEASES if k[:5] == b"lease"), *((k, b"") for k in FOREIGN_COOLING)],
    ids=lambda text: repr(text[:60]),
)
def test_an_audit_reports_each_key_of_another_program_and_reads_the_others(key: bytes, value: bytes) -> None:
    of_railcni = Keys("/railcni")
    entries = of_railcni.entries(LEASE)
    leases, found = store_rules.find_in_keys({**entries, ROOT + key: value}, of_railcni)
    assert [lease.key() for lease in leases] == [LEASE.key()]
    assert len(found) == 1
    assert found[0].kind in ("unreadable", "index-differs")
    assert f"etcdctl del {keys.shown(ROOT + key)}" in found[0].message


def test_a_lease_of_a_prefix_below_this_one_is_no_lease_of_this_one() -> None:
    entries = Keys("/railcni/v1/lease").entries(LEASE)
    leases, found = store_rules.find_in_keys(entries, Keys("/railcni"))
    assert (leases, len(found)) == ([], len(entries))


def test_what_railcni_has_written_is_read_again() -> None:
    for key, value in Keys("/railcni").entries(LEASE).items():
        if value == VALUE:
            assert Keys("/railcni").read(key, value).key() == LEASE.key()


def test_an_audit_has_nothing_to_say_of_the_marks_of_full_blocks_that_earlier_versions_have_left() -> None:
    of_railcni = Keys("/railcni")
    entries = of_railcni.entries(LEASE) | {ROOT + b"full/lease/pool/64/0a000000": b""}
    assert store_rules.find_in_keys(entries, of_railcni)[1] == []


def test_a_name_that_is_no_text_is_reported() -> None:
    with pytest.raises(StateDamaged, match="no UTF-8"):
        keys.unescaped(b"pool\xff")


@pytest.mark.parametrize(
    "key", [b"/a/b%2F-_.:1", b"/a b", b"/a'b", b'/a"b', b"/a\xff\n", b"/$(id)", b"/'\"", b"/\\x41"]
)
def test_a_key_is_shown_as_one_word_of_a_shell(key: bytes) -> None:
    word = keys.shown(key)
    assert word.isprintable()
    printed = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert printed.stdout == key


KEYS = Keys("/railcni")


def test_keys_that_outlive_a_lease_are_no_finding() -> None:
    entries = {
        KEYS.root + b"former/ns/web-0/net1/pool": b"0a000001",
        KEYS.root + b"cooling/lease/pool/0a000001": b"ns/web-0/net1",
        KEYS.root + b"void/rdma-net/c1/net1/0000000000000001": b"",
    }
    assert store_rules.find_in_keys(entries, KEYS) == ([], [])
    _, found = store_rules.find_in_keys({KEYS.root + b"node/node-1/pool/0a000001": b""}, KEYS)
    assert [finding.kind for finding in found] == ["index-differs"]
