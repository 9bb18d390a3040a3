"""The modules that no call of a plugin may load: every pod pays for each of them. `make bench` shows how much."""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.node import Node, Pod

# Modules that a bare interpreter has not loaded, before a call imports anything: VERSION needs no more.
START = {"cni", "cni.link", "gc", "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "importlib.machinery", "warnings"}  # fmt: skip

# Modules that cost a call some milliseconds, or that load others. Stores on a server need some, and name them.
COSTLY = {
    "argparse", "asyncio", "concurrent", "dataclasses", "decimal", "email", "http", "inspect", "ipaddress", "logging",
    "multiprocessing", "pathlib", "pickle", "queue", "random", "secrets", "shutil", "ssl", "subprocess", "tempfile",
    "typing", "urllib", "uuid",
}  # fmt: skip

SHARED_STORES = (
    "ipam.stores.addresslease*", "ipam.stores.etcd*", "ipam.stores.http", "ipam.stores.served", "ipam.stores.ippool*",
    "ipam.stores.apiserver*",
)  # fmt: skip
FILE_STORE = ("sqlite3", "ipam.stores.file")
LINKS = (
    "ctypes", "cni.shared.kernel.links", "cni.shared.kernel.netlink", "cni.link.verbs", "cni.link.verbs.attach",
    "cni.link.verbs.detach",
)  # fmt: skip
DEVICES = ("cni.shared.kernel.sysfs", "cni.link.plugins.host_device")
NETLINK_OF_ADD = ("cni.shared.kernel.ipconfig",)
RESTORE = ("cni.link.plugins.host_device.restore", "cni.shared.kernel.link_sysctls")
RELEASE = ("ipam.upkeep", "ipam.shared")  # with the file store, ADD and CHECK release nothing
NODE_ROUTES = ("cni.link.plugins.uplink", "cni.shared.kernel.node_routes", "cni.shared.kernel.rules")
FOREIGN = ("cni.link.verbs.foreign", "cni.shared.kernel.children")
FEATURES = ("cni.link.features.*",)  # the networks here ask for none

UNLOADED_BY_PLUGIN = {
    "macvlan": (*FEATURES, *DEVICES, *FOREIGN, *NODE_ROUTES, "cni.link.plugins.sriov", "cni.link.plugins.rdma"),
    "host-device": (*FEATURES, "cni.link.plugins.macvlan", "cni.link.plugins.sriov", "cni.link.plugins.rdma"),
    "whereabouts": (
        *FEATURES, *LINKS, *DEVICES, *NETLINK_OF_ADD, "cni.link.verbs.delegate", "cni.link.plugins.macvlan",
        "cni.link.plugins.sriov", "cni.link.plugins.rdma", "cni.shared.kernel.sandbox",
    ),
}  # fmt: skip
UNLOADED_BY_VERB = {
    "ADD": (
        "cni.link.verbs.check", "cni.link.verbs.detach", "cni.link.verbs.gc", "cni.shared.gc", "cni.shared.spec.parsing",
        "cni.link.plugins.macvlan_made",
        "ipam.check", "ipam.ending", "ipam.status",
    ),
    "CHECK": (
        "cni.link.verbs.attach", "cni.link.verbs.gc",
        "ipam.acquire", "ipam.search", "ipam.add", "ipam.ending", "ipam.status",
    ),
    "DEL": (
        *NETLINK_OF_ADD, "cni.link.verbs.attach", "cni.link.verbs.check", "cni.link.verbs.gc",
        "ipam.acquire", "ipam.search", "ipam.add", "ipam.check", "ipam.status",
    ),
}  # fmt: skip


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    return node.pod()


@pytest.mark.parametrize("plugin", UNLOADED_BY_PLUGIN)
@pytest.mark.parametrize("verb", ["VERSION", *UNLOADED_BY_VERB])
def test_a_call_loads_no_module_that_costs_a_pod_time(node: Node, pod: Pod, plugin: str, verb: str) -> None:
    config: dict[str, Any] = {"cniVersion": "1.1.0", "name": "n", "type": plugin, "master": "ens2f0", "device": "ens9"}
    config["ipam"] = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
    if verb in ("CHECK", "DEL"):
        config["prevResult"] = node.cni(plugin, "ADD", config, netns=pod).succeeded()
    found = loaded(node, node.executables / plugin, verb, config, pod)
    assert costly(found) == []
    if verb == "VERSION":
        assert set(found) == START
    else:
        unloaded = (*UNLOADED_BY_PLUGIN[plugin], *UNLOADED_BY_VERB[verb], *SHARED_STORES)
        if (plugin, verb) != ("host-device", "DEL"):
            unloaded += RESTORE
        if verb != "DEL":
            unloaded += RELEASE
        assert of(found, unloaded) == []


@pytest.mark.parametrize("plugin", ["sriov", "rdma"])
def test_a_delete_where_there_is_nothing_loads_no_module_that_costs_a_pod_time(node: Node, plugin: str) -> None:
    """Their ADD needs hardware."""
    config = {"cniVersion": "1.1.0", "name": "n", "type": plugin}
    pod = node.pod()
    assert set(loaded(node, node.executables / plugin, "VERSION", config, pod)) == START
    found = loaded(node, node.executables / plugin, "DEL", config, pod)
    assert costly(found) == []
    assert of(found, (*FEATURES, *NETLINK_OF_ADD, *RESTORE, "cni.link.plugins.macvlan", "ipam")) == []
    of_links = ("cni.link.plugins.host_device", "cni.link.plugins.sriov", "cni.link.verbs", "cni.link.verbs.delegate")
    assert of(found, ("cni.link.plugins.rdma",) if plugin == "sriov" else of_links) == []


def test_the_rules_name_modules_that_exist() -> None:
    """A module that is renamed must not slip out of a rule."""
    root = Path(__file__).resolve().parents[2]
    files = [path.relative_to(root).with_suffix("") for top in ("cni", "ipam") for path in (root / top).rglob("*.py")]
    modules = dict.fromkeys((".".join(file.parts).removesuffix(".__init__") for file in files), False)
    rules = (*UNLOADED_BY_PLUGIN.values(), *UNLOADED_BY_VERB.values(), SHARED_STORES, FILE_STORE, RESTORE, RELEASE)
    names = {name for rule in rules for name in rule if name.startswith(("cni", "ipam"))}
    assert [name for name in names if not of(modules, (name,))] == []


def costly(found: dict[str, bool]) -> list[str]:
    """Those of the modules `found` that no call may load."""
    return sorted(name for name, is_foreign in found.items() if is_foreign or name.partition(".")[0] in COSTLY)


def of(found: dict[str, bool], names: tuple[str, ...]) -> list[str]:
    """Those of the modules `found` that are one of `names`, patterns of fnmatch, or below one."""
    return sorted(name for name in found if any(fnmatch(name, one) or fnmatch(name, f"{one}.*") for one in names))


def loaded(node: Node, launcher: Path, verb: str, config: dict[str, Any], pod: Pod) -> dict[str, bool]:
    """The modules that `launcher` imports in a call that succeeds, beyond those of a bare interpreter, and of each whether
    it is neither of the standard library nor of this project."""
    script = launcher.parent.parent / "libexec" / launcher.name  # what a cold call runs
    interpreter = script.read_text().partition("\n")[0].removeprefix("#!").split()
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_NETNS": pod.path, "CNI_IFNAME": "net1"}
    environ["CNI_PATH"] = str(launcher.parent)
    done = node.run([*interpreter, "-c", _LISTING, str(script)], env=environ, stdin=json.dumps(config).encode())
    assert done.returncode == 0, done.stdout
    names = done.stderr.decode().rpartition("modules: ")[2].split()
    known = {*sys.stdlib_module_names, "cni", "ipam"}
    return {name: name.partition(".")[0] not in known for name in names}


_LISTING = """
import os, sys

bare, leave = set(sys.modules), os._exit

def listed(status):
    names = " ".join(set(sys.modules) - bare)
    os.write(2, ("modules: " + names).encode())
    leave(status)

os._exit, __file__ = listed, sys.argv[1]
exec(open(__file__).read())
"""
