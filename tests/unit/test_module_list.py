"""The exact modules that each verb of each executable loads: every import there is paid by every pod.

A module more is a decision, to be written down here with what it is for; `make bench` shows what it costs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.node import Node, Pod

START = {"cni", "cni.run", "gc"}

PROTOCOL = START | {
    "_json",  # the C half of json, which itself costs 6 ms
    "cni.config",
    "cni.log",
    "cni.spec",
    "cni.spec.codec",
    "cni.spec.errors",
    "cni.spec.request",
    "cni.spec.result",
    "cni.spec.versions",
}

RECORDS = {
    "_blake2",  # which byte of the lock file is an attachment's
    "_struct",
    "cni.attachment",
    "cni.kernel",
    "cni.kernel.files",
    "cni.kernel.locks",
    "cni.kernel.netns",
    "cni.kernel.node",
    "errno",
    "fcntl",
}

FILE_STORE = {
    "_functools",  # lru_cache, in place of functools, which costs 2.3 ms
    "_sqlite3",  # without the Python half, which costs 4.6 ms
    "ipam.stores.bitmap",
    "ipam.stores.database",
    "ipam.stores.file",
    "ipam.stores.lockedfile",
    "ipam.stores.mounts",
    "ipam.stores.schema",
    "ipam.stores.sqlite",
}

LEASES = {
    "_socket",  # inet_pton
    "ipam",
    "ipam.config",
    "ipam.entries",
    "ipam.flatfile",
    "ipam.keys",
    "ipam.leases",
    "ipam.plugin",
    "ipam.ranges",
    "ipam.records",
    "ipam.source",
    "ipam.stores",
    "ipam.stores.base",
    "ipam.upkeep",
}

LINK = {
    "_socket",  # netlink
    "cni.delegate",
    "cni.detach",
    "cni.kernel.links",
    "cni.kernel.netlink",
    "cni.plugins",
    "cni.sandbox",
    "cni.verbs",
} | (set() if hasattr(os, "setns") else {"_ctypes"})  # setns, which Python has from 3.12 on

CONFIGURED = {
    "cni.kernel.addresses",
    "cni.kernel.ipconfig",
    "cni.kernel.routes",
    "cni.kernel.sysctl",
}

OWN = {
    "macvlan": LINK | {"cni.plugins.macvlan"},
    "host-device": LINK
    | {
        "cni.kernel.sysfs",
        "cni.plugins.devices",
        "cni.plugins.host_device",
        "cni.plugins.moved",
    },
    "whereabouts": set(),
}

OF_VERB: dict[str, set[str]] = {"ADD": {"ipam.acquire", "ipam.allocator"}, "CHECK": {"ipam.check"}, "DEL": set()}
OF_DEVICE = {  # what a device of the host has: an ADD reads it, a DEL gives it back
    "ADD": {"cni.kernel.kept", "cni.plugins.hoststate"},
    "CHECK": set(),
    "DEL": {"cni.kernel.given", "cni.kernel.kept", "cni.plugins.restore"},
}
OF_LINK_VERB: dict[str, set[str]] = {
    "ADD": CONFIGURED | {"cni.attach", "cni.policy"},
    "CHECK": CONFIGURED | {"cni.plugins.compare", "cni.upkeep"},
    "DEL": set(),
}


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    return node.pod()


@pytest.mark.parametrize("plugin", OWN)
@pytest.mark.parametrize("verb", ["VERSION", "ADD", "CHECK", "DEL"])
def test_no_module_is_loaded_but_these(node: Node, pod: Pod, plugin: str, verb: str) -> None:
    config: dict[str, Any] = {"cniVersion": "1.1.0", "name": "n", "type": plugin, "master": "ens2f0", "device": "ens9"}
    config["ipam"] = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
    if verb in ("CHECK", "DEL"):
        config["prevResult"] = node.cni(plugin, "ADD", config, netns=pod).succeeded()
    found = loaded(node, node.executables / plugin, verb, config, pod)
    if verb == "VERSION":
        assert found == START
    else:
        assert found == expected(plugin, verb)


OF_SRIOV = LINK | {
    "cni.config",
    "cni.kernel.routes",
    "cni.kernel.sysfs",
    "cni.kernel.vfs",
    "cni.plugins.devices",
    "cni.plugins.moved",
    "cni.plugins.sriov",
    "cni.plugins.sriov_cache",
    "cni.plugins.sriov_log",
    "cni.plugins.sriov_vf",
}
OF_RDMA = LINK - {"_ctypes", "cni.delegate", "cni.detach", "cni.plugins", "cni.verbs"} | {
    "cni.kernel.rdma_netlink",
    "cni.kernel.sysfs",
    "cni.rdma",
    "cni.rdma_cache",
}


@pytest.mark.parametrize(
    ("plugin", "own"), [("sriov", OF_SRIOV), ("rdma", OF_RDMA | {"cni.spec.result"})], ids=["sriov", "rdma"]
)
def test_a_delete_where_there_is_nothing_loads_no_module_but_these(node: Node, plugin: str, own: set[str]) -> None:
    """Their ADD needs hardware."""
    config = {"cniVersion": "1.1.0", "name": "n", "type": plugin}
    pod = node.pod()
    assert loaded(node, node.executables / plugin, "VERSION", config, pod) == START
    assert loaded(node, node.executables / plugin, "DEL", config, pod) == PROTOCOL - {"cni.spec.result"} | RECORDS | own


def expected(plugin: str, verb: str, store: set[str] = FILE_STORE) -> set[str]:
    """What `verb` of `plugin` loads with addresses from `store`."""
    of_verb = OF_VERB[verb] if plugin == "whereabouts" else OF_VERB[verb] | OF_LINK_VERB[verb]
    if (plugin, verb) == ("host-device", "ADD"):
        of_verb = of_verb | {"cni.kernel.rules", "cni.plugins.uplink"}  # whether it carries a default route
    if (plugin, verb) == ("macvlan", "CHECK"):
        of_verb = of_verb | {"cni.plugins.macvlan_check"}
    of_device = OF_DEVICE[verb] if plugin == "host-device" else set()
    return PROTOCOL | RECORDS | LEASES | store | OWN[plugin] | of_verb | of_device


def loaded(node: Node, launcher: Path, verb: str, config: dict[str, Any], pod: Pod) -> set[str]:
    """The modules that `launcher` imports in a call that succeeds, beyond those of a bare interpreter."""
    interpreter = launcher.read_text().partition("\n")[0].removeprefix("#!").split()
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": pod.path,
        "CNI_IFNAME": "net1",
        "CNI_PATH": str(launcher.parent),
    }

    done = node.run([*interpreter, "-c", _LISTING, str(launcher)], env=environ, stdin=json.dumps(config).encode())
    assert done.returncode == 0, done.stdout
    return set(done.stderr.decode().rpartition("modules: ")[2].split())


_LISTING = """
import posix, sys

bare, leave = set(sys.modules), posix._exit

def listed(status):
    posix.write(2, ("modules: " + " ".join(set(sys.modules) - bare)).encode())
    leave(status)

posix._exit, __file__ = listed, sys.argv[1]
exec(open(__file__).read())
"""
