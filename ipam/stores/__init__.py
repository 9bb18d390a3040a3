"""The stores that keep leases: one contract (base), one file a store, independent of one another."""

from __future__ import annotations

from cni.spec.errors import InvalidConfig, UnsupportedField

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ipam.config import IpamConfig
    from ipam.stores.base import Lease, Store

IN_CLUSTER = ("kubernetes", "addresslease")  # kinds that are objects in an API server
SECRETS = ("password",)  # members of a description that no record keeps


def describe(config: IpamConfig) -> dict[str, Any]:
    """What finds the store of `config`: a record keeps it without SECRETS."""
    if config.datastore == "file":
        return {"kind": "file", "path": config.data_dir}
    if config.datastore == "etcd":
        return {
            "kind": "etcd",
            "endpoints": _endpoints(config.etcd_host, bool(config.etcd_ca_cert_file or config.etcd_cert_file)),
            "prefix": config.etcd_prefix,
            "user": config.etcd_username,
            "password": config.etcd_password,
            "ca": config.etcd_ca_cert_file,
            "cert": config.etcd_cert_file,
            "key": config.etcd_key_file,
        }
    if config.datastore == "addresslease":
        return {"kind": "addresslease", "kubeconfig": config.kubeconfig}
    described: dict[str, Any] = {"kind": "kubernetes", "kubeconfig": config.kubeconfig}
    if config.ranges:
        if config.node_slice_size:
            described["node"] = config.node
        whole = config.node_slice_size and not config.slice_node  # then none of it is this node's
        ranges = [] if whole else config.ranges
        described["pools"] = sorted({rng.pool_name(config.network_name, config.slice_node) for rng in ranges})
    return described


def locate(config: IpamConfig, network: str, take: bool, seconds: float = 0) -> None:
    """Let the ranges of `config` be this node's slices of them, where its store gives nodes slices.

    `take` one when the node has none, as an ADD does. `seconds` bound a request; 0: their default.
    """
    if config.node_slice_size and config.datastore == "kubernetes" and config.ranges:
        from ipam.stores.base import SHARED_SECONDS
        from ipam.stores.kubernetes_slices import narrow

        narrow(config, network, seconds or SHARED_SECONDS, take)


def open_store(
    described: dict[str, Any],
    use: int,
    restore: Callable[[], list[Lease]] = list,
    seconds: float = 0,
    warn: Callable[[str], object] = lambda text: None,
) -> Store:
    """The store that `describe` described; `use` and `restore` as ipam.stores.file explains. Nothing is opened yet.

    `seconds` bound each request to a store that nodes share; 0: its default. `warn` is told of what will go wrong soon.
    """
    kind, path = described.get("kind"), described.get("path")
    if kind == "file" and isinstance(path, str):
        from ipam.stores.file import FileStore

        return FileStore(path, use, restore)
    if kind == "etcd" and _is_etcd(described):
        from ipam.stores.base import SHARED_SECONDS
        from ipam.stores.etcd import EtcdStore

        return EtcdStore(described, use, seconds or SHARED_SECONDS)
    if kind == "kubernetes" and _is_kubernetes(described):
        from ipam.stores.base import SHARED_SECONDS
        from ipam.stores.kubernetes import KubernetesStore

        return KubernetesStore(described, seconds or SHARED_SECONDS, restore, warn)
    if kind == "addresslease" and isinstance(described.get("kubeconfig"), str):
        from ipam.stores.addresslease import AddressLeaseStore
        from ipam.stores.base import SHARED_SECONDS

        return AddressLeaseStore(described, seconds or SHARED_SECONDS, restore)
    raise UnsupportedField(
        f'the attachment record names a store of kind "{kind}", which this railcni does not know: use a newer one'
    )


def recorded(described: dict[str, Any]) -> dict[str, Any]:
    """`described` as a record keeps it."""
    return {key: value for key, value in described.items() if key not in SECRETS}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two descriptions are of one store: they may differ in how it is reached."""
    if one.get("kind") == other.get("kind") in IN_CLUSTER:  # a node belongs to one cluster
        return True
    if one.get("kind") != "etcd" or other.get("kind") != "etcd":
        return recorded(one) == recorded(other)
    shared = set(one.get("endpoints") or ()) & set(other.get("endpoints") or ())
    return bool(shared) and one.get("prefix") == other.get("prefix")


def joined(recorded: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """`described`, of the store that `recorded` is of too, with what only the record knows: pools of former ranges."""
    if "pools" not in recorded or "pools" not in described:
        return described
    return {**described, "pools": sorted({*recorded["pools"], *described["pools"]})}


def is_shared(described: dict[str, Any]) -> bool:
    """Whether the store is reached by the network, and may be out of reach while this node is well."""
    return described.get("kind") != "file"


def _endpoints(text: str, tls: bool) -> list[str]:
    from ipam.stores.etcd_gateway import endpoint

    try:
        return [str(endpoint(part, tls)) for part in text.split(",") if part.strip()]
    except ValueError as fault:
        raise InvalidConfig(
            f'ipam.etcd_host "{text}": {fault}; several are separated by commas, and https:// may stand before each'
        ) from None


def _is_kubernetes(described: dict[str, Any]) -> bool:
    pools = described.get("pools", [])
    return (
        isinstance(described.get("kubeconfig"), str)
        and isinstance(described.get("node", ""), str)
        and isinstance(pools, list)
        and all(isinstance(p, str) for p in pools)
    )


def _is_etcd(described: dict[str, Any]) -> bool:
    texts = [described.get(key) for key in ("prefix", "user", "ca", "cert", "key")]
    endpoints = described.get("endpoints")
    return isinstance(endpoints, list) and bool(endpoints) and all(isinstance(t, str) for t in (*texts, *endpoints))
