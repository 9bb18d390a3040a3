"""Where the container runtime of a node looks for plugins.

What the runtimes' configurations say counts first; each names folders in the order in which plugins are searched, and
of these the first that exists is taken. Where no configuration is found, the folders are tried that distributions use.

- containerd: /etc/containerd/config.toml with its imports; `bin_dir`, since 2.1 `bin_dirs`, of the CRI plugin, whose
  table is called `plugins.cri` (version 1), `plugins."io.containerd.grpc.v1.cri"` (2) or
  `plugins."io.containerd.cri.v1.runtime"` (3); /opt/cni/bin when it says nothing. Docker's package installs a containerd
  with the CRI plugin disabled: it runs no pods.
- k3s and RKE2 write a containerd configuration of their own. k3s: /var/lib/rancher/k3s/data/cni since October 2024
  (v1.28.15, v1.29.10, v1.30.6, v1.31.2); before that data/current/bin, which changes with every upgrade of k3s:
  railcni must then be installed again (https://docs.k3s.io/networking/multus-ipams).
- CRI-O: /etc/crio/crio.conf, then the files of crio.conf.d in the order of their names; the last `plugin_dirs` counts,
  /opt/cni/bin when none is there (crio.conf(5), crio.conf.d(5)). OpenShift is CRI-O with /var/lib/cni/bin.
"""

from __future__ import annotations

import glob
import os
import tomllib
from collections.abc import Iterator
from typing import Any

from cni.cli.installation.below import below
from cni.spec.errors import InvalidConfig

DEFAULT = "/opt/cni/bin"
_CONTAINERD = {
    "containerd": "/etc/containerd/config.toml",
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "RKE2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "k0s": "/etc/k0s/containerd.toml",
}
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
_CRIO, _CRIO_PARTS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
_USUAL = (  # one line: what a distribution uses, the best first
    ("k3s", ("/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/data/current/bin")),
    ("OpenShift", ("/var/lib/cni/bin",)),
    ("the usual one", (DEFAULT,)),
)


def plugin_folder(root: str, to: str = "") -> str:
    """The plugin folder, as the host calls it: `to` when given, else the one that the node's runtime searches.

    InvalidConfig: there is none, or several runtimes have different ones, or it does not exist.
    """
    if to:
        folder = os.path.normpath(to if to.startswith("/") else os.path.abspath(to))
    else:
        found = candidates(root)
        if not found:
            raise InvalidConfig(
                "no plugin folder found: neither containerd nor CRI-O is configured here, and none of the usual folders exists:"
                f" name it with --to, such as --to {DEFAULT}"
            )
        if len(set(found.values())) > 1:
            raise InvalidConfig(
                "more than one plugin folder: choose with --to: "
                + ", ".join(f"{f} ({who})" for who, f in found.items())
            )
        folder = next(iter(found.values()))
    if not os.path.isdir(below(root, folder)):
        what = "is no directory" if os.path.lexists(below(root, folder)) else "does not exist"
        raise InvalidConfig(
            f"plugin folder {folder} {what}{_under(root)}: name the one that the runtime searches with --to, or make it first"
        )
    return folder


def candidates(root: str) -> dict[str, str]:
    """Who searches which folder: the runtimes that are configured, or else the usual folders that exist."""
    found: dict[str, str] = {}
    for who, folders in (*_containerd(root), *_crio(root)):
        found[who] = _first(root, folders)
    if not found:
        for who, usual in _USUAL:
            there = [f for f in usual if os.path.isdir(below(root, f))]
            if there:
                found[who] = there[0]
    same: dict[str, str] = {}  # one folder by several paths is one folder
    return {who: same.setdefault(below(root, folder), folder) for who, folder in found.items()}


def _first(root: str, folders: list[str]) -> str:
    return next((f for f in folders if os.path.isdir(below(root, f))), folders[0])


def _containerd(root: str) -> Iterator[tuple[str, list[str]]]:
    for who, path in _CONTAINERD.items():
        if not os.path.isfile(below(root, path)):
            continue
        folders = [DEFAULT]
        disabled: list[Any] = []
        for document in _with_imports(root, path):
            disabled += _list(document.get("disabled_plugins"))
            for plugin in _CRI_PLUGINS:
                cni = _table(document, "plugins", plugin, "cni")
                folders = _folders(cni.get("bin_dirs")) or _folders(cni.get("bin_dir")) or folders
        if not set(_CRI_PLUGINS) & set(map(str, disabled)):
            yield who, folders


def _with_imports(root: str, path: str) -> Iterator[dict[str, Any]]:
    """The document at `path`, then those that it imports: they override it."""
    document = _read(root, path)
    yield document
    for pattern in _folders(document.get("imports")):
        full = os.path.join(os.path.dirname(path), pattern)
        for file in sorted(glob.glob(below(root, os.path.dirname(full)) + "/" + os.path.basename(full))):
            part = f"{os.path.dirname(full)}/{os.path.basename(file)}"
            if os.path.normpath(part) != path:
                yield _read(root, part)


def _crio(root: str) -> Iterator[tuple[str, list[str]]]:
    parts = below(root, _CRIO_PARTS)
    names = sorted(os.listdir(parts)) if os.path.isdir(parts) else []
    paths = [p for p in (_CRIO, *(f"{_CRIO_PARTS}/{n}" for n in names)) if os.path.isfile(below(root, p))]
    folders = [DEFAULT]
    for path in paths:
        network = _table(_read(root, path), "crio", "network")
        folders = _folders(network.get("plugin_dirs")) or _folders(network.get("plugin_dir")) or folders
    if paths:
        yield "CRI-O", folders


def _read(root: str, path: str) -> dict[str, Any]:
    try:
        with open(below(root, path), "rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as fault:
        raise InvalidConfig(f"{path} is not TOML ({fault}): name the plugin folder with --to") from None


def _table(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _folders(value: Any) -> list[str]:
    """The paths in a string or a list of strings."""
    return [v for v in _list(value if isinstance(value, list) else [value]) if isinstance(v, str) and v]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _under(root: str) -> str:
    return "" if root == "/" else f" below {root}"
