"""The stores that keep leases: one contract (base.py), and a folder for each store. No store depends on another.

The reference to a store is a JSON object. `_ref_of` makes it, and `open_store` opens the store; both have a branch for
each kind of store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cni.shared.kernel import files
from cni.shared.spec.errors import InvalidConfig, UnsupportedField
from ipam.leases import Lease, are_texts
from ipam.stores.base import Store

if TYPE_CHECKING:
    from ipam.config import IpamConfig
    from ipam.stores.http import ServerAddress

IN_CLUSTER = ("kubernetes", "addresslease")  # kinds whose leases are objects in an API server
SECRETS = ("password", "borrowed")  # members of a reference that no record keeps
FILES = ("kubeconfig", "ca", "cert", "key")  # members of a reference that are paths of files on the host


def ref_of(config: IpamConfig) -> dict[str, Any]:
    """The reference to the store of `config`, for `open_store`. A record keeps the reference without SECRETS.

    If the network may not name this store, the member `borrowed` has the reason. `open_store` refuses such a reference.
    """
    store_ref = _ref_of(config)
    return {**store_ref, "borrowed": config.borrowed} if config.borrowed else store_ref


def _ref_of(config: IpamConfig) -> dict[str, Any]:
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
    if config.datastore != "kubernetes":
        raise LookupError(f"no store {config.datastore}")
    store_ref: dict[str, Any] = {"kind": "kubernetes", "kubeconfig": config.kubeconfig}
    if config.ranges:
        if config.node_slice_size:
            store_ref["node"] = config.node
        whole = config.node_slice_size and not config.slice_node  # then the range is not yet this node's slice
        ranges = [] if whole else config.ranges
        store_ref["pools"] = sorted({rng.pool_name(config.network_name, config.slice_node) for rng in ranges})
    return store_ref


def locate(config: IpamConfig, network: str, take: bool, seconds: float = 0) -> None:
    """If the network has node slices, replace the range of `config` by this node's slice of the range.

    If the node has no slice, the first free one is used, and assigned to the node if `take` is true. `seconds` limit
    each request; 0 means SHARED_SECONDS. Raises TryAgainLater or InvalidConfig as `narrow` does.
    """
    if config.node_slice_size and config.datastore == "kubernetes" and config.ranges:
        from ipam.stores.ippool.slices import narrow  # most networks give nodes no slices

        narrow(config, network, seconds, take)


def open_store(
    store_ref: dict[str, Any],
    use: int,
    restore: Callable[[], list[Lease]] = list,
    seconds: float = 0,
    warn: Callable[[str], object] = lambda text: None,
) -> Store:
    """The store with the reference `store_ref`. Files and connections are opened later. See FileStore for `use`.

    `seconds` limit each request to a store that nodes share; 0 means SHARED_SECONDS. `restore` is the parameter of
    FileStore, or the parameter `known` of ObjectStore. `warn` is called with each warning for the administrator.
    """
    kind, path = store_ref.get("kind"), store_ref.get("path")
    if store_ref.get("borrowed"):
        raise InvalidConfig(store_ref["borrowed"])
    if kind == "file" and isinstance(path, str):
        from ipam.stores.file import FileStore  # a call has one store

        return FileStore(path, use, restore)
    if kind == "etcd" and _is_etcd(store_ref):
        from ipam.stores.etcd import EtcdStore  # a call has one store

        return EtcdStore(store_ref, seconds)
    if kind == "kubernetes" and _is_kubernetes(store_ref):
        from ipam.stores.ippool import KubernetesStore  # a call has one store

        return KubernetesStore(store_ref, seconds, restore, warn)
    if kind == "addresslease" and isinstance(store_ref.get("kubeconfig"), str):
        from ipam.stores.addresslease import AddressLeaseStore  # a call has one store

        return AddressLeaseStore(store_ref, seconds, restore, warn)
    raise UnsupportedField(
        f'the attachment record names a store of kind "{kind}", which this railcni does not know: use a newer one'
    )


def recorded(store_ref: dict[str, Any]) -> dict[str, Any]:
    """`store_ref` without SECRETS, as a record keeps it."""
    return {key: value for key, value in store_ref.items() if key not in SECRETS}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two references mean the same store; endpoints, kubeconfig and credentials may differ."""
    if one.get("kind") == other.get("kind") in IN_CLUSTER:  # a node belongs to one cluster
        return True
    if one.get("kind") == other.get("kind") == "file":
        return _directory(one.get("path")) == _directory(other.get("path"))
    if one.get("kind") != "etcd" or other.get("kind") != "etcd":
        return recorded(one) == recorded(other)
    shared = set(one.get("endpoints") or ()) & set(other.get("endpoints") or ())
    return bool(shared) and one.get("prefix") == other.get("prefix")


def _directory(path: object) -> str:
    """The directory `path` of a file store, with links resolved, since a flat file may write it in several ways. A path
    that cannot be resolved, or a value in a damaged record, is returned as it is written."""
    try:
        return files.resolve(path) if isinstance(path, str) else repr(path)
    except (OSError, ValueError):
        return str(path)


def joined(recorded: dict[str, Any], store_ref: dict[str, Any] | None) -> dict[str, Any]:
    """The reference with which to open the store of a record: `recorded`, completed by the configured `store_ref`.

    If the two mean one store, the result is `store_ref` with the pools of both. If they mean different stores, it is
    `recorded`. It is also `recorded` if the network may not name this store (`store_ref` has the member `borrowed`). If
    both then have the same etcd user, the password of `store_ref` is added, and only endpoints in both are kept.
    """
    if not store_ref or not same(recorded, store_ref):
        return recorded
    if store_ref.get("borrowed"):
        is_known = "password" in store_ref and store_ref["user"] == recorded.get("user")
        if not is_known:
            return recorded
        named = [endpoint for endpoint in store_ref["endpoints"] if endpoint in recorded["endpoints"]]
        return {**recorded, "endpoints": named, "password": store_ref["password"]}
    if "pools" not in recorded or "pools" not in store_ref:
        return store_ref
    return {**store_ref, "pools": sorted({*recorded["pools"], *store_ref["pools"]})}


def reached(recorded: dict[str, Any], config: IpamConfig) -> dict[str, Any]:
    """The reference `recorded`, completed by `config` (see `joined`) if both name the same kind of shared store."""
    if not is_shared(recorded) or config.datastore != recorded.get("kind"):
        return recorded
    return joined(recorded, ref_of(config))


def is_shared(store_ref: dict[str, Any]) -> bool:
    """Whether the store is behind a server, which may be unreachable while this node works."""
    return store_ref.get("kind") != "file"


def endpoint(text: str, tls: bool) -> ServerAddress:
    """The etcd endpoint `text`, [scheme://]host[:port]. If there is no scheme, `tls` tells whether to use TLS."""
    from ipam.stores.etcd import client  # other stores have no endpoints

    return client.endpoint(text, tls)


def _endpoints(text: str, tls: bool) -> list[str]:
    try:
        return [str(endpoint(part, tls)) for part in text.split(",") if part.strip()]
    except ValueError as fault:
        raise InvalidConfig(
            f'ipam.etcd_host "{text}": {fault}; several are separated by commas, and https:// may stand before each'
        ) from None


def _is_kubernetes(store_ref: dict[str, Any]) -> bool:
    texts = [store_ref.get("kubeconfig"), store_ref.get("node", "")]
    return are_texts(texts) and are_texts(store_ref.get("pools", []))


def _is_etcd(store_ref: dict[str, Any]) -> bool:
    texts = [store_ref.get(key) for key in ("prefix", "user", "ca", "cert", "key")]
    return are_texts(texts) and bool(store_ref.get("endpoints")) and are_texts(store_ref["endpoints"])
