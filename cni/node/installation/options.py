"""The installation that options select, and the folders in which the container runtime of a node searches plugins.

The runtimes' configurations come first: each names folders in the order of the search for plugins, and the first
existing folder is taken. If no runtime has a configuration, the usual folders of distributions are tried.

- containerd: /etc/containerd/config.toml with its imports; `bin_dir`, since 2.1 `bin_dirs`, of the CRI plugin, whose
  table is called `plugins.cri` (version 1), `plugins."io.containerd.grpc.v1.cri"` (2) or
  `plugins."io.containerd.cri.v1.runtime"` (3); /opt/cni/bin by default. Docker's package installs a containerd
  with the CRI plugin disabled: it runs no pods.
- k3s and RKE2 write a containerd configuration of their own. k3s: /var/lib/rancher/k3s/data/cni since October 2024
  (v1.28.15, v1.29.10, v1.30.6, v1.31.2); before that data/current/bin, which changes with every upgrade of k3s:
  railcni must then be installed again (https://docs.k3s.io/networking/multus-ipams).
- CRI-O: /etc/crio/crio.conf, then the files of crio.conf.d in the order of their names; the last `plugin_dirs` counts,
  and /opt/cni/bin is the default (crio.conf(5), crio.conf.d(5)). OpenShift uses CRI-O with /var/lib/cni/bin.
"""

from __future__ import annotations

import argparse
import glob
import os
import tomllib
from collections.abc import Iterator
from typing import Any

from cni.node.installation.change import Folder
from cni.node.installation.files import below
from cni.shared.spec.errors import InvalidConfig

DEFAULT = "/opt/cni/bin"
_CONFIGURATIONS = {
    "containerd": "/etc/containerd/config.toml",
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "RKE2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "k0s": "/etc/k0s/containerd.toml",
    "CRI-O": "/etc/crio/crio.conf",
}
_PARTS = {"CRI-O": ["crio.conf.d/*"]}  # files that a runtime reads although no key `imports` names them
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
_TABLES = (("crio", "network"), *(("plugins", plugin, "cni") for plugin in reversed(_CRI_PLUGINS)))
_KEYS = ("bin_dirs", "bin_dir", "plugin_dirs", "plugin_dir")
_USUAL = (  # the folders of each distribution, the preferred one first
    ("k3s", ("/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/data/current/bin")),
    ("OpenShift", ("/var/lib/cni/bin",)),
    ("the usual one", (DEFAULT,)),
)


def folder_of(options: argparse.Namespace) -> Folder:
    """The plugin folder that the options select. Raises InvalidConfig when there is none."""
    shown = plugin_folder(options.root, options.plugin_dir)
    return Folder(below(options.root, shown), shown)


def state_of(options: argparse.Namespace) -> str:
    """The real path of the state directory."""
    return below(options.root, os.path.abspath(options.state_dir))


def plugin_folder(root: str, to: str = "") -> str:
    """The path, on the host, of the plugin folder: `to` if given, otherwise the folder of the node's runtime. Raises
    InvalidConfig when none is found, when runtimes have different folders, or when the folder does not exist."""
    found = {"--plugin-dir": os.path.abspath(to)} if to else candidates(root)
    if not found:
        message = f"no plugin folder found: neither containerd nor CRI-O is configured here, and none of the usual folders exists: name it with --plugin-dir, such as --plugin-dir {DEFAULT}"
        raise InvalidConfig(message)
    if len(set(found.values())) > 1:
        choice = ", ".join(f"{folder} ({runtime})" for runtime, folder in found.items())
        raise InvalidConfig(f"more than one plugin folder: choose with --plugin-dir: {choice}")
    folder = next(iter(found.values()))
    if not os.path.isdir(below(root, folder)):
        fault = "is no directory" if os.path.lexists(below(root, folder)) else "does not exist"
        place = "" if root == "/" else f" below {root}"
        raise InvalidConfig(
            f"plugin folder {folder} {fault}{place}: name the one that the runtime searches with --plugin-dir, or make it first"
        )
    return folder


def candidates(root: str) -> dict[str, str]:
    """Map each configured runtime to its plugin folder or, if there is none, distributions to their existing
    folders."""
    usual = ((name, [f for f in folders if os.path.isdir(below(root, f))]) for name, folders in _USUAL)
    found = dict(_configured(root)) or {name: there[0] for name, there in usual if there}
    same: dict[str, str] = {}  # folder -> its first path; other paths to the same folder are replaced by it
    return {runtime: same.setdefault(below(root, folder), folder) for runtime, folder in found.items()}


def _configured(root: str) -> Iterator[tuple[str, str]]:
    for runtime, path in _CONFIGURATIONS.items():
        documents = [_read(root, path)] if os.path.isfile(below(root, path)) else []
        imports = [pattern for document in documents for pattern in _strings(document.get("imports"))]
        for pattern in (*imports, *_PARTS.get(runtime, ())):  # later files override earlier ones
            folder, names = os.path.split(os.path.join(os.path.dirname(path), pattern))
            parts = sorted(glob.glob(f"{below(root, folder)}/{names}", include_hidden=True))
            others = [f"{folder}/{os.path.basename(part)}" for part in parts if part != below(root, path)]
            documents += [_read(root, other) for other in others if os.path.isfile(below(root, other))]
        disabled = {name for document in documents for name in _strings(document.get("disabled_plugins"))}
        if documents and disabled.isdisjoint(_CRI_PLUGINS):
            yield runtime, _named(root, documents)


def _named(root: str, documents: list[dict[str, Any]]) -> str:
    """The plugin folder in a runtime's configuration files `documents`. The last file with a list of folders counts.
    The first existing folder of the list is taken or, if none exists, the first folder."""
    found = (_strings(_table(d, *table).get(key)) for d in reversed(documents) for table in _TABLES for key in _KEYS)
    folders = next(filter(None, found), [DEFAULT])
    return next((f for f in folders if os.path.isdir(below(root, f))), folders[0])


def _read(root: str, path: str) -> dict[str, Any]:
    try:
        with open(below(root, path), "rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as fault:
        raise InvalidConfig(f"{path} is not TOML ({fault}): name the plugin folder with --plugin-dir") from None


def _table(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _strings(value: Any) -> list[str]:
    """The non-empty strings in `value`, a list or a single string."""
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str) and v]
