"""What `railcni ipam audit` thinks of the keys in an etcd store."""

from cni.cluster.audit import store_rules
from ipam.stores.etcd.keys import Keys

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
