"""The IPAM plugin with the file store, as link plugins and runtimes call it: which address whom, and how long."""

import json
from typing import Any

import pytest

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam.leases import PART, Owner, recorded_document
from tests import warm
from tests.node import GO_PLUGINS, STATE, Node, Reply

pytestmark = pytest.mark.forked

RANGE = {"range": "192.168.111.0/24"}
FLAT = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"


def network(ipam: dict[str, Any], version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    block = {"type": "whereabouts", "datastore": "file", **ipam}
    filled = {key: value for key, value in block.items() if value is not None}
    return {"cniVersion": version, "name": "rdma-net", "type": "macvlan", "ipam": filled, **more}


def pod_args(name: str, uid: str = "", **more: str) -> str:
    args = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "ns", "K8S_POD_NAME": name, "K8S_POD_UID": uid, **more}
    return ";".join(f"{key}={value}" for key, value in args.items() if value)


def call(node: Node, verb: str, config: dict[str, Any], **how: Any) -> Reply:
    """The IPAM plugin never opens the namespace: a DRA driver passes /dev/null."""
    return node.cni("whereabouts", verb, config, **{"netns": "/dev/null", **how})


def add(node: Node, config: dict[str, Any], container: str = "c1", **how: Any) -> list[str]:
    return call(node, "ADD", config, container_id=container, **how).addresses


def delete(node: Node, config: dict[str, Any], container: str = "c1", **how: Any) -> None:
    assert call(node, "DEL", config, container_id=container, **how).succeeded() is None


def ended(node: Node, config: dict[str, Any], **how: Any) -> None:
    node.ended("whereabouts", config, netns="/dev/null", **how)


def refused(node: Node, config: dict[str, Any], code: int, *words: str, **how: Any) -> None:
    """ADD fails with `code`, and changes nothing."""
    before = node.leftovers()
    call(node, "ADD", config, container_id="refused", **how).refused(code, *words)
    assert node.leftovers() == before


# --- ranges ---
def test_addresses_are_given_from_the_lowest_and_those_freed_again_first(node: Node) -> None:
    config = network(RANGE)
    given = [add(node, config, f"c{i}") for i in range(1, 6)]
    assert given == [[f"192.168.111.{i}/24"] for i in range(1, 6)]
    delete(node, config, "c2")
    delete(node, config, "c4")
    assert [add(node, config, f"d{i}") for i in range(3)] == [[f"192.168.111.{i}/24"] for i in (2, 4, 6)]


FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    # what is written: the addresses that it gives, to the last one (or the first few)
    "host bits": ({"range": "10.0.0.77/24"}, ["10.0.0.1/24", "10.0.0.2/24", "..."]),
    "/30": ({"range": "10.0.0.4/30"}, ["10.0.0.5/30", "10.0.0.6/30"]),
    "/31": ({"range": "10.0.0.4/31"}, ["10.0.0.4/31", "10.0.0.5/31"]),
    "first-last": ({"range": "10.0.0.10-10.0.0.12/24"}, ["10.0.0.10/24", "10.0.0.11/24", "10.0.0.12/24"]),
    "exclude": (
        {"range": "10.0.0.0/28", "exclude": ["10.0.0.0/30", "10.0.0.5", "10.0.0.8/29"]},
        ["10.0.0.4/28", "10.0.0.6/28", "10.0.0.7/28"],
    ),
    "gateway": ({"range": "10.0.0.0/29", "gateway": "10.0.0.1"}, [f"10.0.0.{i}/29" for i in range(2, 7)]),
    "half of an IPv6 range excluded": ({"range": "caa5::/112", "exclude": ["caa5::/113"]}, ["caa5::8000/112", "..."]),
    "a node slice": (
        {"range": "10.0.0.0/24", "exclude": ["10.0.0.0/27"], "node_slice_size": "/26"},
        ["10.0.0.32/24", "..."],
    ),
    "behind the offset 2^63": (
        {"range": "caa5::/64", "range_start": "caa5:0:0:0:caa5::", "range_end": "caa5:0:0:0:caa5::1"},
        ["caa5::caa5:0:0:0/64", "caa5::caa5:0:0:1/64"],
    ),
    "/127": ({"range": "fd00::4/127"}, ["fd00::4/127", "fd00::5/127"]),
    "/128": ({"range": "fd00::4/128"}, ["fd00::4/128"]),
    "IPv6 first-last": ({"range": "fd00::ffff-fd00::1:0/64"}, ["fd00::ffff/64", "fd00::1:0/64"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_range_gives_what_it_says_to_the_last_address(node: Node, form: str) -> None:
    """whereabouts #38: the broadcast address; #71, #278, #666: excludes; #83: large offsets."""
    ipam, expected = FORMS[form]
    config = network(ipam)
    whole = expected[-1] != "..."
    given = [address for address in expected if address != "..."]
    for number, address in enumerate(given):
        assert add(node, config, f"c{number}") == [address]
    if whole:
        refused(node, config, 11, str(len(given)))


def test_each_of_several_ranges_gives_an_address_the_top_one_first(node: Node) -> None:
    """whereabouts #507: two families with overlap checks."""
    ipam = {"range": "16.0.0.0/24", "ipRanges": [{"range": "4000::16.0.0.0/120"}, {"range": "10.2.0.0/30"}]}
    config = network(ipam)
    assert add(node, config) == ["16.0.0.1/24", "4000::1000:1/120", "10.2.0.1/30"]
    assert add(node, config, "c2") == ["16.0.0.2/24", "4000::1000:2/120", "10.2.0.2/30"]
    # all or nothing: the third range is exhausted, and nothing is taken of the others
    refused(node, config, 11, "10.2.0.0", "2")
    delete(node, config)
    assert sorted(node.leases()) == ["10.2.0.2", "16.0.0.2", "4000::1000:2"]
    delete(node, config, "c2")
    assert node.leftovers() == []


def test_static_addresses_are_appended_to_those_of_ranges(node: Node) -> None:
    static = [{"address": "10.9.0.5/24", "gateway": "10.9.0.1"}, {"address": "fd00:9::5/64"}]
    config = network({**RANGE, "addresses": static})
    assert call(node, "ADD", config).succeeded()["ips"] == [{"address": "192.168.111.1/24"}, *static]
    only = network({"addresses": static})
    assert add(node, only, "c2") == ["10.9.0.5/24", "fd00:9::5/64"]
    delete(node, config)
    delete(node, only, "c2")
    assert node.leftovers() == []


def test_gateway_routes_and_names_are_in_the_result(node: Node) -> None:
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "192.168.111.9"}]
    dns = {"nameservers": ["192.168.111.8"], "domain": "example", "search": ["a", "b"], "options": ["ndots:1"]}
    config = network({**RANGE, "gateway": "192.168.111.254", "routes": routes, "dns": dns})
    ips = [{"address": "192.168.111.1/24", "gateway": "192.168.111.254"}]
    assert call(node, "ADD", config).succeeded() == {"cniVersion": "1.1.0", "ips": ips, "routes": routes, "dns": dns}


# --- whose a lease is ---
def test_a_restarted_sandbox_gets_the_addresses_and_a_late_delete_frees_nothing(node: Node) -> None:
    """whereabouts #291: also out of a full pool."""
    config, args = network({**RANGE, "range_end": "192.168.111.1"}), pod_args("pod-a")
    assert add(node, config, "old", args=args) == ["192.168.111.1/24"]
    refused(node, config, 11, "192.168.111.0-24", args=pod_args("stranger"))
    assert add(node, config, "new", args=args) == ["192.168.111.1/24"]
    delete(node, config, "old", args=args)
    assert node.leases() == ["192.168.111.1"]
    delete(node, config, "new", args=args)
    assert node.leftovers() == []


def test_two_known_uids_are_two_pods(node: Node) -> None:
    """whereabouts #176: the reconciler went by the pod's name, and freed the living one's."""
    config = network(RANGE)
    add(node, config, "old", args=pod_args("pod-a", "uid-1"))
    assert add(node, config, "new", args=pod_args("pod-a", "uid-2")) == ["192.168.111.2/24"]
    call(node, "GC", config | valid("new")).succeeded()
    assert node.leases() == ["192.168.111.2"]
    delete(node, config, "old", args=pod_args("pod-a", "uid-1"))  # late
    assert node.leases() == ["192.168.111.2"]


def test_another_ifname_or_pod_takes_nothing_over(node: Node) -> None:
    """whereabouts #446, #503: a pod alone is not who holds an address, nor is its container."""
    config, args = network(RANGE), pod_args("pod-a", "uid-1")
    both = [add(node, config, "old", args=args, ifname=name) for name in ("net1", "net2")]
    assert both == [["192.168.111.1/24"], ["192.168.111.2/24"]]
    assert [add(node, config, "new", args=args, ifname=name) for name in ("net1", "net2")] == both
    assert add(node, config, "c3", args=pod_args("pod-b")) == ["192.168.111.3/24"]


def test_the_last_addresses_of_a_pool_go_to_as_many_of_those_who_race_for_them(node: Node) -> None:
    config = network({"range": "10.0.0.0/28"})  # 14 addresses
    calls = [node.start_cni("whereabouts", "ADD", config, container_id=f"c{i}", netns="/dev/null") for i in range(20)]
    replies = node.cni_at_once(calls)
    given = [reply.addresses[0] for reply in replies if not reply.status]
    assert (len(given), len(set(given))) == (14, 14)
    assert ({reply.code for reply in replies}, len(node.leases())) == ({0, 11}, 14)


def test_adds_and_deletes_of_one_attachment_at_once_end_in_a_state_that_a_delete_clears(node: Node) -> None:
    config = network({"range": "10.1.0.0/24", "ipRanges": [{"range": "fd00:1::/64"}]})
    verbs = ["ADD", "DEL"] * 10
    replies = node.cni_at_once([node.start_cni("whereabouts", verb, config, netns="/dev/null") for verb in verbs])
    assert [reply.status for reply in replies] == [0] * len(verbs)
    assert len(node.leases()) in (0, 2)
    assert len(node.leases()) == 2 * len([f for f in node.files() if "attachments" in f])
    ended(node, config)


# --- the node's policy ---

POLICY = "/etc/cni/net.d/whereabouts.d/railcni.json"


OUTSIDE = "range 192.168.111.0/24 is not in ranges"


@pytest.mark.parametrize(
    ("block", "policy", "words"),
    [
        ({}, {"ranges": ["10.0.0.0/8", "fd00::/16"]}, f"{OUTSIDE} (10.0.0.0/8, fd00::/16)"),
        ({}, {"ranges": ["192.168.111.0/25"]}, OUTSIDE),
        ({}, {"ranges": []}, f"{OUTSIDE} (none)"),
        ({"ipRanges": [{"range": "fd00::/64"}]}, {"ranges": ["192.168.0.0/16"]}, "range fd00::/64 is not in ranges"),
        ({"addresses": [{"address": "10.7.0.7/16"}]}, {"ranges": ["192.168.0.0/16"]}, "static address 10.7.0.7/16"),
        ({}, {"networkNames": ["red"]}, 'ipam.network_name "" is not in networkNames (red)'),
        ({"network_name": "blue"}, {"networkNames": [""]}, 'ipam.network_name "blue" is not in networkNames ("")'),
        ({}, {"ranges": ["banana"]}, 'ranges ["banana"]: want a CIDR'),
    ],
)
def test_a_range_or_name_that_is_not_listed_is_refused(node: Node, block: Any, policy: Any, words: str) -> None:
    config = network({**RANGE, **block})
    result = call(node, "ADD", config).succeeded()
    node.allow(**policy)
    for verb, more in (("ADD", {"container_id": "c2"}), ("STATUS", {})):
        call(node, verb, config, **more).refused(7, words, POLICY)
    call(node, "CHECK", {**config, "prevResult": {"cniVersion": "1.1.0", **result}}).succeeded()
    assert "192.168.111.2" not in node.leases()
    delete(node, config)
    assert node.leases() == []


def test_what_the_nodes_policy_lists_is_given(node: Node) -> None:
    node.allow(ranges=["192.168.0.0/16", "fd00::/16"], networkNames=["", "red-*"])
    both = {**RANGE, "ipRanges": [{"range": "fd00::/64"}], "addresses": [{"address": "192.168.7.7/16"}]}
    assert len(add(node, network(both), "c1")) == 3
    assert add(node, network({**RANGE, "network_name": "red-1"}), "c2") == ["192.168.111.1/24"]


def test_the_nodes_policy_covers_requests_outside_of_the_ranges_and_all_rails(node: Node) -> None:
    node.allow(ranges=["192.168.111.0/24"])
    config = network({**RANGE, "allow_outside_ranges": True})
    call(node, "ADD", config, args="IgnoreUnknown=1;IP=10.7.0.7/16").refused(7, "range 10.7.0.0/16")
    rail = {"index": 0, "group": "gpu", "addressing": "same-index", "ranges": [RANGE["range"], "10.0.0.0/24"]}
    call(node, "ADD", network(RANGE, rail=rail)).refused(7, "range 10.0.0.0/24 is not in ranges")
    assert node.leftovers() == []


def test_one_range_under_two_network_names_is_two_pools(node: Node) -> None:
    for container, name in (("c1", "blue"), ("c2", "red"), ("c3", None)):
        assert add(node, network({**RANGE, "network_name": name}), container) == ["192.168.111.1/24"]
    assert add(node, network({**RANGE, "network_name": "red"}), "c4") == ["192.168.111.2/24"]


# --- DEL, CHECK, GC ---
CHANGED: tuple[dict[str, Any], ...] = (
    {"range": "10.0.0.0/24"}, {"range": "nonsense"}, {"dataDir": "/var/lib/cni/railcni/stores/other"},
    {"network_name": "blue"}, {"addresses": [{"address": "10.0.0.1/24"}], "range": None}, {"datastore": None},
)  # fmt: skip


@pytest.mark.parametrize("changed", CHANGED, ids=json.dumps)
def test_a_delete_finds_its_leases_after_the_configuration_has_changed(node: Node, changed: dict[str, Any]) -> None:
    add(node, network(RANGE))
    ended(node, network({**RANGE, **changed}), args=pod_args("pod-a"))


def valid(*containers: str) -> dict[str, Any]:
    return {"cni.dev/valid-attachments": [{"containerID": c, "ifname": "net1"} for c in containers]}


def test_gc_frees_what_is_not_listed_of_this_network_alone(node: Node) -> None:
    config, other = network(RANGE), network(RANGE) | {"name": "other"}
    for container in ("c1", "c2", "c3"):
        add(node, config, container)
    add(node, other, "c9")
    assert call(node, "GC", config | valid("c2")).succeeded() is None
    assert node.leases() == ["192.168.111.2", "192.168.111.4"]
    assert call(node, "GC", config | valid()).succeeded() is None
    assert node.leases() == ["192.168.111.4"]


def test_leases_of_an_earlier_boot_go_when_their_namespace_has_gone(node: Node) -> None:
    pod = node.pod()
    config = network({"range": "10.0.0.0/30"})
    add(node, config, "dead", netns="/run/netns/no-more")
    add(node, config, "live", netns=pod.path)
    refused(node, config, 11)
    node.reboot()
    assert (add(node, config, "new"), node.leases()) == (["10.0.0.1/30"], ["10.0.0.1", "10.0.0.2"])


@pytest.mark.parametrize("verb", ["ADD", "GC"])
def test_a_host_that_has_another_name_since_its_reboot_frees_the_leases_of_the_earlier_boot(
    node: Node, verb: str
) -> None:
    """As with a name from DHCP. GC finds a lease without a record by its node."""
    config = network({"range": "10.0.0.0/31"})
    for container in ("c1", "c2"):
        add(node, config, container, netns="/run/netns/no-more", more={"NODENAME": "before"})
    node.reboot()
    if verb == "ADD":
        assert add(node, config, "new", more={"NODENAME": "after"}) == ["10.0.0.0/31"]
        return
    for record in node.path(f"{STATE}/attachments").iterdir():
        record.unlink()
    listed = {"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "net1"}]}
    assert call(node, "GC", config | listed, more={"NODENAME": "after"}).succeeded() is None
    assert node.leases() == ["10.0.0.1"]


def test_a_nodes_name_that_is_not_utf_8_makes_no_call_fail(node: Node) -> None:
    config, name = network(RANGE), {"NODENAME": "n\udcff"}
    add(node, config, more=name)
    assert call(node, "GC", config | {"cni.dev/valid-attachments": None}, more=name).succeeded() is None
    assert node.leftovers() == []


@pytest.mark.parametrize("verb", ["DEL", "GC", "DEL after a dropped release, beside a damaged record"])
def test_a_static_address_is_leased_in_the_file_store_as_long_as_a_pod_has_it(node: Node, verb: str) -> None:
    """No agent need run where the leases are in a file."""
    config = network({"range": "10.0.0.0/29", "addresses": [{"address": "10.0.0.1/29"}]})
    other = {**network({"range": "10.0.0.0/28"}), "name": "other"}
    for container in ("c1", "c2"):
        add(node, config, container)
    records = Records(str(node.path(STATE)))
    for container, more in (("c0", {"shared": 5}), ("c9", {"pending": True})) if "beside" in verb else ():
        attachment = Attachment(config["name"], container, "net1")
        kind = {"kind": "tape"} if "pending" in more else {"kind": "file", "path": STATE}
        records.write(attachment, PART, {**recorded_document(kind, (), Owner(attachment)), **more})
    if "beside" in verb:
        assert node.railcni("ipam", "flush", "--drop", "--yes").returncode == 0
    if verb.startswith("DEL"):
        delete(node, config, "c1")
    else:
        listed = {"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "net1"}]}
        assert call(node, "GC", config | listed).succeeded() is None
    assert add(node, other, "o1") == ["10.0.0.2/28"]
    delete(node, config, "c2")
    assert add(node, other, "o2") == ["10.0.0.1/28"]


def test_a_directory_that_the_flat_file_writes_in_another_way_is_the_same_store(node: Node) -> None:
    """The records say which leases a new lease file begins with."""
    config = network({**RANGE, "datastore": None})
    node.path("/var/lib/leases").mkdir(mode=0o700)
    node.path("/var/lib/link").symlink_to("leases")
    for number, directory in enumerate(("/var/lib/leases/", "/var/lib//leases", "/var/lib/link"), 1):
        node.write(FLAT, {"datastore": "file", "dataDir": directory})
        assert add(node, config, f"c{number}") == [f"192.168.111.{number}/24"]
    node.path("/var/lib/leases/leases.db").unlink()
    assert add(node, config, "new") == ["192.168.111.4/24"]
    assert len(node.leases("/var/lib/leases")) == 4


# --- which store ---
def test_a_kubernetes_pod_is_never_given_node_local_addresses_unasked(node: Node) -> None:
    config, args = network({**RANGE, "datastore": None}), pod_args("pod-a")
    reply = call(node, "ADD", config, args=args)
    reply.refused(7, "datastore", "no store is named")
    for top in ("/etc/kubernetes", "/etc", "/host/etc", "/host/etc/kubernetes"):
        path = f"{top}/cni/net.d/whereabouts.d/whereabouts.conf"
        assert path in reply.msg + reply.document.get("details", "")
    assert node.leftovers() == []
    delete(node, config, args=args)


@pytest.mark.parametrize("plugin", ["whereabouts", "macvlan"])
def test_status_says_that_no_pod_of_kubernetes_can_be_attached_while_no_store_is_named(node: Node, plugin: str) -> None:
    node.master()
    unnamed = network({**RANGE, "datastore": None}, master="ens2f0")
    reply = node.cni(plugin, "STATUS", unnamed)
    reply.refused(50, "datastore", "no store is named")
    assert all(word in reply.document["details"] for word in ('"file"', "kubernetes.kubeconfig"))
    assert node.cni(plugin, "STATUS", network({**RANGE, "datastore": "file"}, master="ens2f0")).succeeded() is None
    assert node.leftovers() == []


def test_without_a_pod_the_file_store_is_the_default(node: Node) -> None:
    config = network({**RANGE, "datastore": None})
    assert add(node, config) == ["192.168.111.1/24"]
    ended(node, config)


@pytest.mark.parametrize("path", [FLAT, "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf"])
def test_a_flat_file_fills_what_the_block_leaves_out(node: Node, path: str) -> None:
    node.own_etc()
    node.write(path, {"datastore": "file", "range": "10.3.0.0/24", "gateway": "10.3.0.1", "log_level": "debug"})
    block = {"datastore": None}
    assert add(node, network(block), args=pod_args("pod-a")) == ["10.3.0.2/24"]
    assert add(node, network({**block, **RANGE, "gateway": "192.168.111.1"}), "c2") == ["192.168.111.2/24"]


def test_log_lines_carry_container_pod_and_interface(node: Node) -> None:
    node.run(["mount", "-t", "tmpfs", "tmpfs", "/var/log"]).check_returncode()
    config = network({**RANGE, "log_file": "/var/log/railcni/ipam.log", "log_level": "debug"})
    add(node, config, "container-7", args=pod_args("pod-a"))
    delete(node, config, "container-7", args=pod_args("pod-a"))
    lines = node.path("/var/log/railcni/ipam.log").read_text().splitlines()
    assert lines and all("container-7" in line and "ns/pod-a" in line and "net1" in line for line in lines)


def test_a_block_needs_no_type(node: Node) -> None:
    config = network(RANGE)
    del config["ipam"]["type"]
    del config["type"]
    assert add(node, config) == ["192.168.111.1/24"]
    ended(node, config)


# --- a store in trouble ---
def test_a_read_only_disk_is_named(node: Node) -> None:
    config = network(RANGE)
    add(node, config)
    before = node.leases()
    if node.is_warm:
        warm.end(node)  # an idle worker has the lease file open, and the kernel then refuses what follows
    node.run(["mount", "-o", "remount,ro", "/var/lib"]).check_returncode()
    for verb, code, container in (("ADD", 5, "c2"), ("STATUS", 50, "c1"), ("DEL", 5, "c1")):
        call(node, verb, config, container_id=container).refused(code, STATE, "Read-only", "mount it writable")
    node.run(["mount", "-o", "remount,rw", "/var/lib"]).check_returncode()
    assert node.leases() == before
    ended(node, config)


# --- called by others ---
@pytest.mark.skipif(not (GO_PLUGINS / "macvlan").exists(), reason="needs the package containernetworking-plugins")
@pytest.mark.parametrize("version", ["0.2.0", "1.0.0"])
def test_gos_macvlan_finds_it_in_cni_path(node: Node, version: str) -> None:
    node.master()
    pod = node.pod()
    config = network(RANGE, version, master="ens2f0")

    def go(verb: str, **more: Any) -> Reply:
        return node.cni(GO_PLUGINS / "macvlan", verb, {**config, **more}, netns=pod, path=[node.executables])

    reply = go("ADD")
    assert reply.addresses == ["192.168.111.1/24"] == pod.view.link("net1").texts
    if version >= "0.4.0":
        assert go("CHECK", prevResult=reply.document).succeeded() is None
    for _ in range(2):
        assert go("DEL").succeeded() is None
    assert node.leftovers() == []
