"""What `railcni ipam audit` thinks of the keys in an etcd store."""

from __future__ import annotations

from cni.library.audit import store_rules

ROOT = b"/railcni/v1/"


def test_keys_that_outlive_a_lease_are_no_finding() -> None:
    entries = {
        ROOT + b"former/ns/web-0/net1/pool": b"0a000001",
        ROOT + b"cooling/lease/pool/0a000001": b"ns/web-0/net1",
        ROOT + b"void/rdma-net/c1/net1/0000000000000001": b"",
    }
    assert store_rules.find_in_keys(entries, ROOT, lambda lease: {}) == ([], [])
    _, found = store_rules.find_in_keys({ROOT + b"node/node-1/pool/0a000001": b""}, ROOT, lambda lease: {})
    assert [finding.kind for finding in found] == ["index-differs"]
