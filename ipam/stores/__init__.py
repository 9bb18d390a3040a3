"""The stores that keep leases: one contract (base), one file a store, independent of one another."""

from __future__ import annotations

from cni.spec.errors import UnsupportedField

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ipam.config import IpamConfig
    from ipam.stores.base import Lease, Store


def describe(config: IpamConfig) -> dict[str, Any]:
    """What a record must keep to find the store of `config` again; UnsupportedField for a store that is not there."""
    if config.datastore != "file":
        raise UnsupportedField(
            f'ipam.datastore "{config.datastore}" is not in this version of railcni: want "file", addresses of this node alone'
        )
    return {"kind": "file", "path": config.data_dir}


def open_store(described: dict[str, Any], use: int, restore: Callable[[], list[Lease]] = list) -> Store:
    """The store that `describe` described; `use` and `restore` as ipam.stores.file explains. Nothing is opened yet."""
    kind, path = described.get("kind"), described.get("path")
    if kind != "file" or not isinstance(path, str):
        raise UnsupportedField(
            f'the attachment record names a store of kind "{kind}", which this railcni does not know: use a newer one'
        )
    from ipam.stores.file import FileStore

    return FileStore(path, use, restore)
