"""Every network in conf/ attached, checked and detached with `railcni` in a real namespace: what comes of it, and
that nothing is left. The list of them is that of tests/cli/test_conf.py, which also knows every other file."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tests.blackbox.test_command import GO
from tests.blackbox.test_host_device import bus
from tests.cli.test_conf import CONF, CONFLISTS, NADS, NETWORKS
from tests.each import quick
from tests.fabric import rules
from tests.node import GO_PLUGINS, Node, Pod

FLAT_FILE = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=rdma-pod-1;K8S_POD_INFRA_CONTAINER_ID=a1;K8S_POD_UID=u1"
LENGTHS = {"fd00:192:168:112::1": 64, "192.168.2.225": 28, "192.168.3.225": 28}
VFS = ["rdma-vf", "rdma-vf-exclusive"]
ABSENT = ["rdma-pf-pci", *VFS, *(n for n in NETWORKS if n.startswith("nvidia-host-device"))]  # want a PCI function
PRESENT = [n for n in NETWORKS if n not in ABSENT and n != "gpu-rail-0"]  # which is attached with gpu-rail-1


class Site:
    """A node with the links that the networks name, and a pod."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.master()
        node.host.add_veth("ens2f1", "ens2f1-peer", mtu=9000)
        node.remember()
        self.pod: Pod = node.pod("rdma-pod-1")

    def install(self, name: str) -> None:
        """Make conf/whereabouts.d/`name` the flat file of this node, in an /etc of its own."""
        self.node.own_etc()
        self.node.write(FLAT_FILE, (CONF / "whereabouts.d" / name).read_text())

    def run(self, verb: str, network: str, *more: str) -> subprocess.CompletedProcess[bytes]:
        env = {"CNI_PATH": f"{self.node.executables}:{GO_PLUGINS}", "NETCONFPATH": str(CONF / "net.d")}
        name = () if "-i" in more else ("-i", "net1")
        return self.node.railcni(verb, network, self.pod.name, *name, *more, env=env)

    def ok(self, verb: str, network: str, *more: str) -> Any:
        done = self.run(verb, network, *more, "-o", "json")
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def refused(self, verb: str, network: str, *more: str) -> str:
        done = self.run(verb, network, *more)
        if b"there is no plugin tuning" in done.stderr:
            pytest.skip("needs Go's plugins: apt-get install containernetworking-plugins")
        assert done.returncode == 1
        return done.stderr.decode()


@pytest.fixture
def site(node: Node) -> Site:
    return Site(node)


def assert_attached(site: Site, name: str, result: dict[str, Any]) -> None:
    """The pod has the link and the addresses of the network `name`, and what its chained plugin does."""
    first, behind, addresses = NETWORKS[name]
    link = site.pod.view.link("net1")
    wanted = [f"{a}/{LENGTHS.get(a, 24)}" for a in addresses]
    assert link.texts == wanted
    assert [a["address"] for a in result.get("ips", [])] == wanted
    assert link.up
    if first["type"].endswith("macvlan"):
        assert (link.kind, link.mode, link.mtu) == ("macvlan", first.get("mode", "bridge"), first["mtu"])
    else:
        assert link.kind == "veth"
        assert "ens2f1" not in site.node.host.names()
    if "rail" in first:
        number = first["rail"]["index"]
        assert rules(site.pod.view, 7000 + number) == [(addresses[0], 7000 + number)]
    if name == "rdma-net-tuning":
        for key, value in (("arp_announce", "2"), ("arp_ignore", "1"), ("rp_filter", "2")):
            assert site.pod.view.sysctl(f"net/ipv4/conf/net1/{key}") == value
    elif "tuning" in behind:
        assert site.pod.view.sysctl("net/ipv4/conf/net1/arp_ignore") == "1"
    elif "sbr" in behind:
        with site.pod.view.rtnl() as ipr:
            (rule,) = [r for r in ipr.get_rules(family=socket.AF_INET) if r.get("src")]
            assert (rule.get("src"), rule["src_len"]) == ("192.168.117.1", 32)
            routes = ipr.get_routes(family=socket.AF_INET, table=rule.get("table"))
            assert "192.168.117.254" in [r.get("gateway") for r in routes]


def assert_whole_life(site: Site, name: str, network: str, *more: str) -> None:
    assert_attached(site, name, site.ok("attach", network, *more))
    checked = site.run("check", network)
    if b"conf/IFNAME/" in checked.stderr:  # Go's tuning of Debian 12 replaces IFNAME in ADD, but not yet in CHECK
        assert (name, checked.returncode) == ("rdma-net-tuning", 1)
    else:
        assert (checked.returncode, checked.stderr) == (0, b"")
    site.ok("detach", network)
    assert site.node.leftovers() == []
    assert "ens2f1" in site.node.host.names()


@GO
@pytest.mark.parametrize("name", PRESENT)
def test_a_pod_is_attached_by_the_nad(site: Site, name: str) -> None:
    site.install("file-store.conf")
    assert_whole_life(site, name, str(CONF / NADS[name]), "--args", ARGS)


@GO
@pytest.mark.parametrize("name", quick([n for n in PRESENT if n in CONFLISTS], "rdma-net", "rdma-net-tuning"))
def test_a_namespace_is_attached_by_the_conflist(site: Site, name: str) -> None:
    assert_whole_life(site, name, name)


def test_the_nad_of_a_vf_attaches_the_function_of_that_address(site: Site) -> None:
    site.install("file-store.conf")
    bus(site.node, "pci", "0000:18:00.3", "ens2f1", driver="mlx5_core")
    assert_whole_life(site, "rdma-vf", str(CONF / NADS["rdma-vf"]), "--args", ARGS)


def test_the_vf_of_a_chain_whose_keys_no_pf_can_set_here_is_refused_and_nothing_is_left(site: Site) -> None:
    """What the chain makes of a VF with its PF is the lab's matter: tests/lab/test_sriov.py, test_rdma_chain.py."""
    bus(site.node, "pci", "0000:18:00.3", "ens2f1", driver="mlx5_core")
    told = "sriov ADD failed with code 7: vlan, vlanQoS, max_tx_rate, spoofchk, trust: only the PF"
    assert_refused(site, "rdma-vf-exclusive", told, more=["--device-id", "0000:18:00.3"])


def test_the_nads_of_rails_give_a_pod_one_index_on_both(site: Site) -> None:
    site.install("file-store.conf")
    args = ("--args", ARGS)
    for number in (1, 0):
        site.ok("attach", str(CONF / NADS[f"gpu-rail-{number}"]), "-i", f"net{number}", *args)
    for number in (0, 1):
        assert site.pod.view.link(f"net{number}").texts == [f"192.168.12{number}.1/24"]
        site.ok("detach", str(CONF / NADS[f"gpu-rail-{number}"]), "-i", f"net{number}")
    assert site.node.leftovers() == []


@pytest.mark.parametrize("model", ["roce-shared", "sriov-roce", "pf-passthrough"])
def test_the_network_of_a_model_gives_its_server_the_address_that_the_client_names(site: Site, model: str) -> None:
    """That of a function has it by the device plugin's device. The VF of DPDK, with a PF, is the lab's matter."""
    site.install("file-store.conf")
    device = []
    if model != "roce-shared":
        bus(site.node, "pci", "0000:18:00.3", "ens2f1", driver="mlx5_core")
        device = ["--device-id", "0000:18:00.3"]
    server, client = yaml.safe_load_all((CONF / "examples/bandwidth/pods.yaml").read_text())
    (wanted,) = json.loads(server["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    (address,) = [one["value"] for one in client["spec"]["containers"][0]["env"] if one["name"] == "SERVER"]
    path = str(CONF / "examples" / model / "network.yaml")
    site.ok("attach", path, *device, "--args", f"{ARGS};IP={','.join(wanted['ips'])}")
    link = site.pod.view.link("net1")
    assert (link.texts, link.up) == ([f"{address}/24"], True)
    assert link.kind == ("macvlan" if model == "roce-shared" else "veth")
    site.ok("detach", path, *device)
    assert site.node.leftovers() == []
    assert "ens2f1" in site.node.host.names()


@pytest.mark.parametrize("name", quick(ABSENT, "rdma-pf-pci", "rdma-vf-exclusive"))
def test_a_pci_function_that_is_not_there_is_named_and_nothing_is_left(site: Site, name: str) -> None:
    address = "0000:18:00.3" if name in VFS else "0000:18:00.2"
    more = ["--device-id", address] if name.startswith("nvidia-") or name.endswith("exclusive") else []
    assert_refused(site, name, f"railcni: {NETWORKS[name][0]['type']} ADD failed with code", address, more=more)


def assert_refused(site: Site, name: str, *words: str, flat: str = "file-store.conf", more: Sequence[str] = ()) -> None:
    """The attach by the NAD is refused with these words, and nothing is left."""
    site.install(flat)
    told = site.refused("attach", str(CONF / NADS[name]), "--args", ARGS, *more)
    assert [word for word in words if word not in told] == []
    assert site.node.leftovers() == []


def test_a_nad_that_leaves_the_device_to_a_device_plugin_says_so(site: Site) -> None:
    name = next(n for n in ABSENT if n.startswith("nvidia-"))
    assert_refused(site, name, "railcni: host-device ADD failed with code 7: ", "pciBusID")


def test_the_clusters_flat_file_without_its_kubeconfig_is_refused_and_the_kubeconfig_named(site: Site) -> None:
    words = ("code 7", "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig")
    assert_refused(site, "rdma-net-ipam", *words, flat="whereabouts.conf")
