"""Checks of the pods, network namespaces and directories that a command line names: their names and existence."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from cni.shared.kernel import netns as namespaces
from cni.shared.spec.errors import InvalidConfig

NAMED_NAMESPACES = "/run/netns"
_POD_GROUP = re.compile(r"(?:^|-)pod([^.]+)(?:\.slice)?$")  # a pod's cgroup, for both cgroup drivers of kubelet
_LABELS = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def read_pod(text: str) -> str:
    """Check that `text` names a pod as NAMESPACE/POD, and return `text`. Raises ValueError for another form."""
    namespace, slash, name = text.partition("/")
    if not slash or not _LABELS.fullmatch(namespace) or not _LABELS.fullmatch(name) or "." in namespace:
        raise ValueError("want NAMESPACE/POD")
    return text


def require_directory(option: str, shown: str, path: str = "") -> None:
    """Raise InvalidConfig if `path` (default: `shown`) is missing or a file. The message names the command line's
    `option` and its value `shown`."""
    if is_missing(path or shown):
        raise InvalidConfig(f'{option} "{shown}": there is no such directory')
    if os.path.isfile(path or shown):
        raise InvalidConfig(f'{option} "{shown}": is no directory')


def is_missing(path: str) -> bool:
    """Whether nothing is at `path`. False if this user may not look there: opening the path will show the reason."""
    try:
        os.stat(path)
    except OSError as fault:
        return isinstance(fault, FileNotFoundError | NotADirectoryError)
    return False


def is_of_pod(pod: tuple[str, str], wanted: str) -> bool:
    """Whether the text `wanted`, [NAMESPACE/]NAME, names the pod `pod`, which is (namespace, name)."""
    namespace, _, name = wanted.rpartition("/")
    return bool(name) and pod[1] == name and namespace in ("", pod[0])


def namespace_path(text: str) -> str:
    """The absolute path of the network namespace `text`, a path or a name. Symbolic links are not resolved."""
    if not text:
        return ""
    return os.path.abspath(text) if "/" in text else os.path.join(NAMED_NAMESPACES, text)


def is_alive(netns: str) -> bool:
    """Whether the network namespace at `netns` may exist. True in doubt, so that no attachment in use is removed:
    callers that know no namespace, such as DRA drivers, name /dev/null."""
    return netns in ("", os.devnull) or namespaces.may_be_at(netns)


def running_pods(root: str, pods: Collection[str]) -> list[str]:
    """Return the UIDs in `pods` whose pods have a cgroup on the host mounted at `root`. kubelet creates a pod's cgroup
    before it prepares the pod's claims, and removes the cgroup after the pod's end. systemd's cgroups have "_" in place
    of "-"."""
    wanted = {uid.replace("-", "_"): uid for uid in pods}
    names = (name for _, folders, _ in os.walk(f"{root}/sys/fs/cgroup") for name in folders)
    found = (_POD_GROUP.search(name) for name in names)
    return sorted({wanted[uid] for one in found if one and (uid := one[1].replace("-", "_")) in wanted})
