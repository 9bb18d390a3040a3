"""What is compared: the plugins of each side, and the configuration of the same network for each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.samples import Operation
from tests.callers import CONTAINERD
from tests.node import GO_PLUGINS, ROOT, STATE

BUILD = ROOT / "build"

OURS, GO = "ours", "Go"
IPPOOLS = "ours, IPPools"  # over whereabouts' objects, where ours alone has one of its own for each address
SIZES = (0, 1_000, 10_000, 65_000)
FULL = SIZES[-1]
PODS = 50

# Groups of operations, as the table shows them. Of the first our IPAM is the file store, Go's host-local.
POOL = "macvlan, addresses from a pool"
AS_CONTAINERD = "as containerd calls: macvlan, addresses from a pool"
HOST_LOCAL = "macvlan, host-local on both sides"
STATIC = "macvlan, static on both sides"
BARE = "macvlan, no addresses"
HOST_DEVICE = "host-device, static on both sides"
POOL_COLD = "cold: macvlan, addresses from a pool"
HOST_DEVICE_COLD = "cold: host-device, static on both sides"
AT_ONCE = f"{PODS} at once: {POOL}"
FLOORS = "floors"
WORKERS_IDLE, WORKERS_BUSY = (
    Operation("memory of the warm workers, MB", what) for what in ("idle", f"after {PODS} at once")
)
MOVE = Operation(FLOORS, "netlink move of a device")
INTERPRETER = Operation(FLOORS, "bare interpreter, -IS")

# The stores that nodes share: the IPAM plugin alone.
NODES = 16  # that calls pose as
LEASES = 5_000  # in a pool of whereabouts, whose object has 0.5 MiB then
KUBE = "Kubernetes"
KUBE_NODE = "Kubernetes: 100 at once on one node"
KUBE_NODES = f"Kubernetes: 100 at once as {NODES} nodes"
KUBE_FULL = f"Kubernetes: 30 at once, {LEASES:,} leases"
# The part users.
NETWORKS = 16
RANGES, SHARED, RAILS = f"{NETWORKS} ranges", "one /16", f"{NETWORKS} rails"
ADDRESS_LEASES, SHARED_POOLS = "AddressLeases", "IPPools"
MANY_LEASES = 20_000
KUBE_SIZES = "Kubernetes: full pools"
KUBE_EMPTY, KUBE_FILLED = (Operation(KUBE_SIZES, w) for w in ("ADD, empty pool", f"ADD, {MANY_LEASES:,} leases"))
ETCD = "etcd, and the file store"
ETCD_EMPTY, ETCD_FILLED, ETCD_CROWDED = (
    Operation(ETCD, what) for what in ("ADD, empty pool", "ADD, 45,000 leases", "ADD, 95 % of a /16 full")
)
ETCD_FILE = Operation(ETCD, "ADD, file store, empty pool")
ETCD_CLAIMS = Operation(ETCD, f"claims a second, {PODS} processes")
ETCD_CLAIMS_FILLED = Operation(ETCD, f"the same, 107,000 leases in etcd, {PODS} processes")
ETCD_SEARCHES = Operation(ETCD, f"the same, each the lowest free, {PODS} processes")


def ipam_group(leases: int) -> str:
    return f"IPAM alone, {leases:,} leases"


@dataclass(frozen=True)
class Side:
    """One side's plugins. `number` is 1 for ours, 2 for Go's and more for others."""

    name: str
    folder: Path
    number: int

    @property
    def path(self) -> str:
        """CNI_PATH: the side's own plugins, then Go's for what it has not."""
        return os.pathsep.join(dict.fromkeys([str(self.folder), str(GO_PLUGINS)]))

    @property
    def pool_plugin(self) -> str:
        """The IPAM plugin that gives addresses of a pool."""
        return "whereabouts" if self.executable("whereabouts").exists() else "host-local"

    @property
    def device(self) -> str:
        """The netdev that this side's host-device moves."""
        return f"bench{self.number}"

    @property
    def state(self) -> str:
        """Where this side's IPAM plugin keeps leases when it is measured alone.

        host-local's files stay for the next run: ext4 looks at each inode that was freed in the last minutes before it
        makes a file (recently_deleted, fs/ext4/ialloc.c), and would take most of a minute to make them all again.
        """
        return (
            f"{STATE}/stores/bench-{self.number}" if self.pool_plugin == "whereabouts" else str(BUILD / "bench-pools")
        )

    def executable(self, plugin: str) -> Path:
        return self.folder / plugin

    def network(self, what: str) -> str:
        return f"bench-{self.number}-{what}"

    def subnet(self) -> str:
        return f"10.{self.number}.0.0/16"

    def pool(self) -> dict[str, Any]:
        """The `ipam` block for addresses of a pool."""
        if self.pool_plugin == "whereabouts":
            return {"type": "whereabouts", "range": self.subnet(), "datastore": "file"}
        return self.host_local()

    def host_local(self) -> dict[str, Any]:
        return {"type": "host-local", "ranges": [[{"subnet": self.subnet()}]]}

    def full_pool(self, leases: int) -> bytes:
        """The configuration for the IPAM plugin alone, of a pool with so many leases."""
        block = {**self.pool(), "dataDir": f"{self.state}/{leases}"}
        return _network(self, str(leases), {"type": "macvlan", "ipam": block})


@dataclass(frozen=True)
class Scenario:
    """A network: the link plugin, where its addresses come from, and the verbs to measure."""

    group: str
    plugin: str
    source: str
    verbs: tuple[str, ...] = ("ADD", "CHECK", "DEL")
    cold: bool = False  # ours start Python for each call
    caller: Mapping[str, str] = field(default_factory=dict)  # variables beside those of the specification

    def config(self, side: Side, **more: Any) -> bytes:
        keys: dict[str, Any] = {"type": self.plugin}
        keys |= {"master": "ens2f0", "mtu": 9000} if self.plugin == "macvlan" else {"device": side.device}
        if self.source != "none":
            static = {"type": "static", "addresses": [{"address": "10.200.0.7/16"}]}
            keys["ipam"] = {"pool": side.pool(), "host-local": side.host_local(), "static": static}[self.source]
        return _network(side, f"{self.plugin}-{self.source}", keys | more)


_ALL_VERBS = ("VERSION", "ADD", "CHECK", "DEL")
SCENARIOS = (
    Scenario(POOL, "macvlan", "pool", _ALL_VERBS),
    Scenario(AS_CONTAINERD, "macvlan", "pool", _ALL_VERBS, caller=CONTAINERD.environ),
    Scenario(HOST_LOCAL, "macvlan", "host-local"), Scenario(STATIC, "macvlan", "static"),
    Scenario(BARE, "macvlan", "none"), Scenario(HOST_DEVICE, "host-device", "static"),
    Scenario(POOL_COLD, "macvlan", "pool", cold=True), Scenario(HOST_DEVICE_COLD, "host-device", "static", cold=True),
)  # fmt: skip

_SHARED = (KUBE, KUBE_NODE, KUBE_NODES, KUBE_FULL, KUBE_SIZES, ETCD)
# In the order of the table.
GROUPS = (*(s.group for s in SCENARIOS), AT_ONCE, *map(ipam_group, SIZES), *_SHARED, FLOORS)


def _network(side: Side, what: str, keys: dict[str, Any]) -> bytes:
    return json.dumps({"cniVersion": "1.0.0", "name": side.network(what), **keys}).encode()
