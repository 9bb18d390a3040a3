"""cni/cluster/audit: what is found between pools, reservations and pods, what is never called dead, how full a pool is."""

import json
from typing import Any

import pytest

from cni.cluster.audit import findings as kinds
from cni.cluster.audit import occupancy
from cni.cluster.audit.findings import KEEP, LOOK, RECLAIM, RESTORE, Finding
from cni.cluster.audit.lease_rules import find
from cni.cluster.audit.model import IpamBlock, Snapshot, nad_name, parse_networks, parse_node, parse_pod, parse_pool
from cni.cluster.audit.occupancy import spans_of
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.ranges import Range, parse_address
from ipam.stores.ippool.objects import IPPool, Reservation

STATUS = "k8s.v1.cni.cncf.io/network-status"
NAD = "team/rdma-net"


def pool(
    *offsets: int, name: str = "192.168.111.0-24", pods: dict[int, str] | None = None, **entry: Any
) -> dict[str, Any]:
    """An IPPool; the entry at offset N is that of pod team/pN in container cN."""
    allocations = {
        str(n): {"id": f"c{n}", "podref": (pods or {}).get(n, f"team/p{n}"), "ifname": "net1", **entry} for n in offsets
    }
    cidr = name.rpartition("-")[0].rpartition("-")[2] + "/" + name.rpartition("-")[2]
    return {"metadata": {"name": name}, "spec": {"range": cidr, "allocations": allocations}}


def reservation(n: int, scope: str = "", pod: str = "", **details: Any) -> dict[str, Any]:
    name = f"{scope}-192.168.111.{n}" if scope else f"192.168.111.{n}"
    annotations = {"railcni.io/lease": json.dumps(details)} if details else {}
    spec = {"podref": pod or f"team/p{n}", "ifname": "net1", **({"containerid": f"c{n}"} if details else {})}
    return {"metadata": {"name": name, "uid": f"r{n}", "annotations": annotations}, "spec": spec}


def pod(
    n: int, *ips: str, phase: str = "Running", uid: str = "", network: str = NAD, **metadata: Any
) -> dict[str, Any]:
    """Pod team/pN, which shows `ips` on net1."""
    status = [{"name": "cbr0", "interface": "eth0", "ips": ["10.1.1.1"], "default": True}]
    status += [{"name": network, "interface": "net1", "ips": list(ips)}] if ips else []
    annotations = {STATUS: json.dumps(status)} if ips else {}
    named = {"namespace": "team", "name": f"p{n}", "uid": uid or f"u{n}", "annotations": annotations, **metadata}
    return {"metadata": named, "spec": {"nodeName": "node-1"}, "status": {"phase": phase}}


def nad(name: str = "rdma-net", **ipam: Any) -> dict[str, Any]:
    block = {"type": "whereabouts", "range": "192.168.111.0/24", **ipam}
    config = {"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "ens2f0", "ipam": block}
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"config": json.dumps(config)}}


def node(ready: bool = True, taint: str = "") -> dict[str, Any]:
    spec = {"taints": [{"key": taint}] if taint else []}
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    return {"metadata": {"name": "node-1"}, "spec": spec, "status": {"conditions": conditions}}


def found(
    pools: list[dict[str, Any]],
    reservations: list[dict[str, Any]] = (),  # type: ignore[assignment]
    pods: list[dict[str, Any]] = (),  # type: ignore[assignment]
    nads: list[dict[str, Any]] | None = None,
    nodes: list[dict[str, Any]] = (),  # type: ignore[assignment]
) -> list[Finding]:
    nads = [nad()] if nads is None else nads
    networks = [n for d in nads for n in parse_networks(d)]
    scopes = {"", *(n.network_name for n in networks)}
    reserved = [Reservation(d, scopes) for d in reservations]
    named = {one.name: one for one in reserved}
    states = [parse_pool(d, named.get, networks) for d in pools]
    parsed = [parse_pod(d) for d in pods]
    return find(
        Snapshot(
            kind="kubernetes", leases=[lease for s in states for lease in s.leases], pools=states, reserved=reserved,
            pods={(p.namespace, p.name): p for p in parsed}, nodes={n.name: n for n in map(parse_node, nodes)},
            networks=networks, nads={nad_name(d) for d in nads},
        )
    )  # fmt: skip


def brief(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.kind, f.action, f.address) for f in findings]


IP = "192.168.111.{}".format


ONE, TOLD = ([pool(1)], [reservation(1)]), ([pool(1)], [reservation(1, uid="former", sequence=7)])
TWO = ([pool(1, 2, pods={2: "team/p1"})], [reservation(1), reservation(2, pod="team/p1")])
ALONE = ([pool()], [reservation(1)])  # a reservation without a lease
UNRESERVED = ([pool(1)], [], [pod(1, IP(1))])
ON_NODE = ([pool(1)], [reservation(1, node="node-1")], [], None)
OFF = node(ready=False, taint="node.kubernetes.io/out-of-service")
MIRROR = {"kubernetes.io/config.mirror": "former"}
FOREIGN = [nad(type="host-local"), nad(range="10.9.0.0/16"), nad(datastore="etcd"), nad(datastore="file")]
SILENT = [pod(1), pod(1, "fd00::7"), pod(1, deletionTimestamp="2026-01-01T00:00:00Z")]
JUDGED: dict[str, tuple[tuple[Any, ...], list[tuple[str, str, str]]]] = {
    "pods show their addresses": (([pool(1, 2)], [reservation(1), reservation(2)], [pod(1, IP(1)), pod(2, IP(2))]), []),
    "its pod is pending": ((*ONE, [pod(1, phase="Pending", uid="new")]), [(kinds.LEASE_PENDING, KEEP, IP(1))]),
    "it is of an IPAMClaim": (([pool(1, ipamclaimref="c")], [reservation(1)]), [(kinds.LEASE_CLAIMED, KEEP, IP(1))]),
    "its pod has ended": ((*ONE, [pod(1, IP(1), phase="Succeeded")]), [(kinds.LEASE_OF_ENDED_POD, RECLAIM, IP(1))]),
    "a former pod's, which the pod of its name uses": ((*TOLD, [pod(1, IP(1))]), []),
    "a former pod's, of which that does not speak": ((*TOLD, [pod(1)]), [(kinds.LEASE_OF_ANOTHER_UID, LOOK, IP(1))]),
    "a static pod's, which has another uid in the API": ((*TOLD, [pod(1, annotations=MIRROR)]), []),
    "its pod has another address there": ((*TWO, [pod(1, IP(1))]), [(kinds.LEASE_UNUSED, RECLAIM, IP(2))]),
    **{f"its pod does not speak of it: {n}": ((*ONE, [shown], []), []) for n, shown in enumerate(SILENT)},
    "its node is not ready": ((*ON_NODE, [node(ready=False)]), [(kinds.LEASE_WITHOUT_POD, LOOK, IP(1))]),
    **{
        f"its node {what}": ((*ON_NODE, nodes), [(kinds.LEASE_WITHOUT_POD, RECLAIM, IP(1))])
        for what, nodes in (("is off", [OFF]), ("is gone", []), ("is ready", [node()]))
    },
    "a pod's address that no pool holds": (
        (*ONE, [pod(1, IP(1)), pod(2, IP(2))]), [(kinds.POD_WITHOUT_LEASE, LOOK, IP(2))]),
    "it names no pod": (([pool(1, podref="")], [reservation(1, pod="/")]), [(kinds.LEASE_WITHOUT_OWNER, LOOK, IP(1))]),
    "a reservation whose pod has another address": (
        (*ALONE, [pod(1, IP(2))]), [(kinds.RESERVATION_WITHOUT_LEASE, RECLAIM, IP(1)), (kinds.POD_WITHOUT_LEASE, LOOK, IP(2))]),
    "a reservation whose pod has the address": (
        (*ALONE, [pod(1, IP(1))]), [(kinds.RESERVATION_WITHOUT_LEASE, LOOK, IP(1)), (kinds.POD_WITHOUT_LEASE, LOOK, IP(1))]),
    **{f"an address of another IPAM plugin or store: {n}": (([pool()], [], [pod(2, IP(2))], [x]), []) for n, x in enumerate(FOREIGN)},
    "a lost reservation": (UNRESERVED, [(kinds.LOST_RESERVATION, RESTORE, IP(1))]),
    "no reservation, which the network wants": ((*UNRESERVED, [nad(enable_overlapping_ranges=False)]), []),
    "somebody else's reservation": (
        ([pool(1)], [reservation(1, pod="team/p7")], [pod(1, IP(1)), pod(7)]),
        [(kinds.FOREIGN_RESERVATION, LOOK, IP(1))]),
    "a reservation of no pod": (ALONE, [(kinds.RESERVATION_WITHOUT_LEASE, RECLAIM, IP(1))]),
    "a reservation of a pending pod": ((*ALONE, [pod(1, phase="Pending")]), [(kinds.RESERVATION_WITHOUT_LEASE, KEEP, IP(1))]),
    "a reservation of which its pod does not speak": ((*ALONE, [pod(1)]), [(kinds.RESERVATION_WITHOUT_LEASE, LOOK, IP(1))]),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_a_lease_an_address_and_a_reservation_are_judged_by_pods_nodes_and_networks(case: str) -> None:
    given, findings = JUDGED[case]
    assert brief(found(*given)) == findings


def test_a_lease_whose_pod_does_not_exist_is_dead() -> None:
    (finding,) = found([pool(1)], [reservation(1)])
    assert brief([finding]) == [(kinds.LEASE_WITHOUT_POD, RECLAIM, IP(1))]
    assert (finding.container_id, finding.pod, finding.ifname) == ("c1", "team/p1", "net1")
    assert finding.reservation == ("192.168.111.1", "r1")


def test_a_lease_is_not_dead_while_any_pod_shows_its_address() -> None:
    findings = found([pool(1)], [reservation(1)], [pod(2, IP(1))])
    assert (kinds.LEASE_WITHOUT_POD, LOOK, IP(1)) in brief(findings)
    assert (kinds.POD_WITHOUT_LEASE, LOOK, IP(1)) in brief(findings)
    assert "team/p2" in next(f.message for f in findings if f.kind == kinds.POD_WITHOUT_LEASE)


def test_the_lease_of_a_former_pod_of_the_same_name_is_dead() -> None:
    reserved = [reservation(1, uid="former", sequence=7), reservation(9, pod="team/p1")]
    (finding,) = found([pool(1, 9, pods={9: "team/p1"})], reserved, [pod(1, IP(9))])
    assert brief([finding]) == [(kinds.LEASE_OF_ANOTHER_UID, RECLAIM, IP(1))]
    assert (finding.pod_uid, finding.sequence) == ("former", 7)


def test_two_pods_with_one_address_are_found_and_both_are_named() -> None:
    findings = found([pool(1)], [reservation(1)], [pod(1, IP(1)), pod(2, IP(1))])
    duplicate = next(f for f in findings if f.kind == kinds.DUPLICATE_ADDRESS)
    assert (duplicate.action, duplicate.address) == (LOOK, IP(1))
    assert "team/p1" in duplicate.message and "team/p2" in duplicate.message


def test_networks_with_names_of_their_own_may_use_the_same_addresses() -> None:
    blue, red = nad("blue", network_name="blue"), nad("red", network_name="red")
    pools = [pool(1, name=f"{name}-192.168.111.0-24", pods={1: f"team/p{i}"}) for i, name in ((1, "blue"), (2, "red"))]
    pods = [pod(1, IP(1), network="team/blue"), pod(2, IP(1), network="team/red")]
    reservations = [reservation(1, "blue", pod="team/p1"), reservation(1, "red", pod="team/p2")]
    assert found(pools, reservations, pods, nads=[blue, red]) == []


def test_ranges_that_overlap_and_gave_an_address_twice_are_found() -> None:
    pools = [pool(1), pool(1, name="192.168.0.0-16")]
    pools[1]["spec"]["allocations"] = {str(111 * 256 + 1): {"id": "c9", "podref": "team/p9", "ifname": "net1"}}
    wide = nad("wide", range="192.168.0.0/16")
    pods = [pod(1, IP(1)), pod(9, IP(1), network="team/wide")]
    findings = found(pools, [reservation(1)], pods, nads=[nad(), wide])
    assert {kinds.DUPLICATE_ADDRESS, kinds.DUPLICATE_LEASE} <= {f.kind for f in findings}


def test_pools_are_judged_by_their_networks_name_also_those_of_node_slices() -> None:
    sliced = nad(network_name="blue", node_slice_size="/26")
    pools = [pool(1, name="blue-node-1-192.168.111.0-26")]
    assert found(pools, [reservation(1, "blue")], [pod(1, IP(1))], nads=[sliced]) == []
    networks = [nad(range="10.0.0.0/16", node_slice_size="/26"), nad("blue", network_name="blue")]
    blue = [pool(1, name="blue-192.168.111.0-24")]
    assert found(blue, [reservation(1, "blue")], [pod(1, IP(1), network="team/blue")], nads=networks) == []


def test_keys_that_are_no_offsets_are_told() -> None:
    odd = pool(1)
    odd["spec"]["allocations"] |= {"x": {"id": "c", "podref": "a/b"}, "300000000000": {"id": "c", "podref": "a/b"}}
    findings = found([odd], [reservation(1)], [pod(1, IP(1))])
    assert [f.kind for f in findings] == [kinds.UNREADABLE] * 2


def test_where_pods_cannot_be_read_no_lease_is_called_dead() -> None:
    state = parse_pool(pool(1), {}.get)
    findings = find(Snapshot("kubernetes", state.leases, [state], reserved=[]))
    assert brief(findings) == [(kinds.LOST_RESERVATION, RESTORE, IP(1))]


def test_a_network_of_all_rails_has_the_pools_of_each() -> None:
    rail = {"group": "gpu", "nics": ["a", "b"], "ranges": ["192.168.0.0/24", "192.168.1.0/24"]}
    config = {"type": "macvlan", "rail": rail, "ipam": {"type": "whereabouts"}}
    networks = parse_networks({"metadata": {"name": "gpu"}, "spec": {"config": json.dumps(config)}})
    assert [network.pools() for network in networks] == [["192.168.0.0-24"], ["192.168.1.0-24"]]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", ["[", "5", "[5]", DEEP, '{"a":' * 1000 + "1" + "}" * 1000, '[{"name": 5, "interface": [], "ips": 5}]', '[{"ips": true}]', '[{"ips": "10.0.0.1"}]', '[{"ips": [5, null, {}]}]']
)  # fmt: skip
def test_what_anybody_writes_into_the_annotation_of_a_pod_keeps_no_lease_from_being_judged(text: str) -> None:
    odd = pod(2)
    odd["metadata"]["annotations"] = {STATUS: text}
    assert brief(found([pool(1, 2)], [reservation(1), reservation(2)], [odd])) == [
        (kinds.LEASE_WITHOUT_POD, RECLAIM, IP(1))
    ]


@pytest.mark.parametrize("plugins", ["5", "true", "1.5", "[5]", '"x"', "{}", "[]", DEEP, "[{}]", '[{"ipam": 5}]'])
def test_what_anybody_writes_into_a_nad_keeps_no_lease_from_being_judged(plugins: str) -> None:
    odd = {
        "metadata": {"namespace": "team", "name": "odd"},
        "spec": {"config": f'{{"name": "n", "plugins": {plugins}}}'},
    }
    findings = found([pool(1)], [reservation(1)], nads=[nad(), odd])
    assert brief(findings) == [(kinds.LEASE_WITHOUT_POD, RECLAIM, IP(1))]


NET = parse_address("10.0.0.0")[1]


def test_the_size_is_what_may_be_given_and_leases_outside_of_it_are_told() -> None:
    ranges = [Range(4, NET, 24, NET + 10, NET + 19), Range(4, NET, 24, NET + 30, NET + 39)]
    full = occupancy.of([NET + 5, NET + 10, NET + 30], spans_of("10.0.0.0/24", ranges))
    assert (full.size, full.used, full.outside, full.free, full.percent) == (20, 3, 1, 18, 10.0)


def test_the_strip_shows_where_the_leases_are() -> None:
    full = occupancy.of([NET + i for i in range(1, 129)], spans_of("10.0.0.0/24"))
    assert (full.drawn("utf-8"), full.drawn("ascii")) == (16 * "█" + "▁" + 15 * "·", 16 * "8" + "1" + 15 * ".")
    assert occupancy.of([NET + 2], spans_of("10.0.0.0/29")).drawn("utf-8") == "·█····"


def test_of_a_vast_range_the_beginning_is_shown_as_far_as_leases_reach() -> None:
    full = occupancy.of([1, 300], spans_of("::/64"))
    assert (full.shown, full.size) == (512, (1 << 64) - 2)
    assert occupancy.of([], spans_of("::/64")).shown == 256
    assert occupancy.of([1, 1 << 40], spans_of("::/64")).shown == 1 << 40


def test_a_pool_whose_name_tells_no_range_is_told_while_it_has_leases() -> None:
    odd = IPPool({"metadata": {"name": "odd"}, "spec": {"range": "10.0.0.0/24"}}, 0)
    lease = Lease(Want("odd", 4, NET + 1, ""), Owner(Attachment("net", "c1", "net1")))
    assert occupancy.pools(Snapshot("kubernetes", [], [odd])) == []
    (pool,) = occupancy.pools(Snapshot("kubernetes", [lease], [odd]))
    assert (pool.name, pool.used, pool.occupancy) == ("odd", 1, None)


def test_a_pool_whose_ranges_give_no_address_has_no_occupancy() -> None:
    """An agent counts it beside all others, and must not fail."""
    block = IpamBlock("team/a", "a", "", (Range(4, NET, 30, blocked=[(NET, NET + 3)]),), True, False, "")
    assert [pool.occupancy for pool in occupancy.uses({("10.0.0.0-30", 4): [NET + 1]}, {}, [block])] == [None]
