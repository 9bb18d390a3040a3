"""The policy of this node for networks: the administrator's file railcni.json, or the defaults.

The author of a network configuration must not reach every file and device of the node. So the policy lists the
directories (roots) in which the configuration's paths must lie, and the masters and devices that the configuration may
name. Paths in the flat file (whereabouts.conf) have no limits, since the administrator writes that file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cni.shared import log
from cni.shared.config import Fault, declare, fill, integer, keys_of, list_of, mapping, refuse, string
from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig

PATHS = (
    "/etc/kubernetes/cni/net.d/whereabouts.d/railcni.json",
    "/etc/cni/net.d/whereabouts.d/railcni.json",
    "/host/etc/cni/net.d/whereabouts.d/railcni.json",
    "/host/etc/kubernetes/cni/net.d/whereabouts.d/railcni.json",
)
"""The paths of railcni.json, beside the flat file (ipam.source.PATHS); the first file that exists is used."""

_USUAL_PATH = PATHS[1]
DATA_ROOTS = ("/var/lib/cni/railcni/stores",)
CONFIG_ROOTS = tuple(path.rpartition("/")[0] for path in PATHS)
_MOST_BYTES = 1 << 20
_MOST_SHOWN = 60  # characters of a list in a message


def root(value: Any) -> str:
    """Check that `value` is an absolute path, and return it. Networks may name paths below a root."""
    if not string(value).startswith("/"):
        raise ValueError("want absolute paths")
    return str(value)


def pattern(value: Any) -> str:
    """Check that `value` is a pattern of names (see `matches`), and return it."""
    if not string(value):
        raise ValueError('want names, "*" stands for any characters')
    return str(value)


WARM = {"idleSeconds": (600, 3600), "workers": (14, 256)}  # (default, maximum)


def warm(value: Any) -> tuple[int, int]:
    """Check the key `warm`. Returns the idle seconds after which a worker ends, and the maximum number of workers."""
    block = mapping(value)
    if not block.keys() <= WARM.keys():
        raise ValueError(f"want no other keys than {', '.join(WARM)}")
    idle, workers = (integer(0, most)(block.get(name, default)) for name, (default, most) in WARM.items())
    return idle, workers


class Policy:
    """The node's policy: an attribute for each of KEYS. `path` is its file, or the usual path if there is no file."""

    dataRoots: Sequence[str] = declare(list_of(root), DATA_ROOTS).means(
        "where a network's `dataDir` may lie: directories for railcni alone, including their subdirectories"
    )
    dataDirs: int = declare(integer(0, 100_000), 1000).means(
        "how many directories networks may make below each of the `dataRoots`, including their subdirectories"
    )
    logRoots: Sequence[str] = declare(list_of(root), (log.ROOT,)).means(
        "where a network's `log_file` may lie: directories, including their subdirectories, or files; one elsewhere is not written"
    )
    configRoots: Sequence[str] = declare(list_of(root), CONFIG_ROOTS).means(
        "where a network's `configuration_path`, `kubernetes.kubeconfig` and `etcd_*_file` may lie, so that it uses what they"
        " say: directories, including their subdirectories, or files"
    )
    deviceInfoRoots: Sequence[str] = declare(
        list_of(root), ("/run/k8s.cni.cncf.io/devinfo/cni", "/var/run/k8s.cni.cncf.io/devinfo/cni")
    ).means("where `runtimeConfig.CNIDeviceInfoFile` may lie")
    masters: Sequence[str] = declare(list_of(pattern), ("*",)).means(
        'names of the host\'s netdevs that `macvlan` may use as master, "*" stands for any characters'
    )
    devices: Sequence[str] = declare(list_of(pattern), ("*",)).means(
        'names or PCI addresses of the devices that `host-device`, `sriov` and `rdma` may move, "*" stands for any characters'
    )
    uplinks: Sequence[str] = declare(list_of(pattern), ()).means(
        "names or PCI addresses of devices that `host-device`, `sriov`, `rdma` and `macvlan` in mode passthru may take although they carry the"
        " node's own traffic, or are bridges, tunnels or the host's ends of sandboxes; \"*\" stands for any characters"
    )
    ranges: Sequence[str] = declare(list_of(pattern), ("*",)).means(
        "CIDRs that hold each range and static address that networks may use; `*` stands for all"
    )
    networkNames: Sequence[str] = declare(list_of(string), ("*",)).means(
        'each `network_name` that networks may use, "*" stands for any characters, and "" for a network without one'
    )
    storeHosts: Sequence[str] = declare(list_of(pattern), ()).means(
        'hosts that a network\'s own `etcd_host` may name, on any port, "*" stands for any characters; the endpoints of the'
        " flat file need no entry"
    )
    warm: tuple[int, int] = declare(warm, warm({})).means(
        "the processes that serve calls without a start of Python: their maximum number (`workers`), and the seconds after the"
        " last call until they end (`idleSeconds`); 0: none"
    )

    def __init__(self, document: dict[str, Any], path: str = _USUAL_PATH) -> None:
        """Check `document`. Raises InvalidConfig for a wrong value or an unknown key, which may be misspelt."""
        self.path = path
        faults: list[Fault] = []
        fill(self, KEYS, document, faults, f"{path}: ")
        known = {key.name.lower(): key.name for key in KEYS}
        for name in document:
            if name.lower() not in known:
                wanted = f"is unknown: want {', '.join(known.values())}"
                faults.append(Fault(f"{path}: {name[:40]}", document[name], wanted))
        refuse(faults)

    def confine(self, key: str, value: str) -> str:
        """The path `value` without symbolic links. Raises ValueError when the path is below no root of the list `key`."""
        roots: Sequence[str] = getattr(self, key)
        try:
            resolved = files.resolve(value)
            if key == "logRoots" and resolved in followed(
                (log.ROOT,)
            ):  # a file there would be in the way of the log files of all networks
                raise ValueError("is the directory of log files: want a file in it")
            if any(files.is_below(resolved, one) for one in followed(roots)):
                return resolved
        except OSError as fault:
            raise ValueError(f"cannot be followed: {fault.strerror}") from None
        leads = "is" if resolved == value else f"leads to {resolved[:60]},"
        raise ValueError(f"{leads} not in {key} ({shortened(roots)}): want a path there, or change {self.path}")

    def allows(self, key: str, names: Sequence[str]) -> bool:
        """Whether one of `names` matches a pattern in the list `key`."""
        return any(matches(one, name) for one in getattr(self, key) for name in names if name)

    def way_out(self) -> str:
        """The remedy, for the error message about a device that networks may not take."""
        return f"list it in `uplinks` of {self.path}"

    def permit(self, key: str, what: str, names: Sequence[str]) -> None:
        """Raise InvalidConfig when none of a device's `names` matches the list `key`. `what` describes the device."""
        if not self.allows(key, names):
            raise self.refusal(key, what)

    def refusal(self, key: str, what: str) -> InvalidConfig:
        """The error for a device, described by `what`, that the list `key` does not allow."""
        allowed = [one or '""' for one in getattr(self, key)]
        text = f"{what} is not in {key} ({shortened(allowed)}): want one that is, or change {self.path}"
        return InvalidConfig(text, f"{key}: {', '.join(allowed) or 'none'}")


def followed(roots: Sequence[str]) -> list[str]:
    """The paths `roots` without symbolic links, except those that cannot be followed: nothing is below them."""
    found = []
    for root in roots:
        try:
            found.append(files.resolve(root))
        except (OSError, ValueError):
            pass
    return found


def shortened(names: Sequence[str]) -> str:
    """At least the first of `names`, and as many more as fit in 60 characters; "none" if `names` is empty. "…" stands
    for the omitted names, and for the end of a long first name. Runtimes cut off the end of a long message."""
    shown = names[0] if names else "none"
    if len(shown) > _MOST_SHOWN:
        return f"{shown[:_MOST_SHOWN]}…"
    for name in names[1:]:
        if len(shown) + len(name) > _MOST_SHOWN:
            return f"{shown}, …"
        shown += f", {name}"
    return shown


KEYS = keys_of(Policy)


def matches(pattern: str, name: str) -> bool:
    """Whether `name` is `pattern`, in which each "*" stands for any characters."""
    if pattern == "*" or "*" not in pattern:
        return pattern in ("*", name)
    first, *middle, last = map(re.escape, pattern.split("*"))
    parts = "".join(f"(?>.*?{part})" for part in middle)  # each part where it first occurs: no trial of other places
    return re.fullmatch(f"{first}{parts}.*{last}", name, re.DOTALL) is not None


_current: Policy | None = None


def current() -> Policy:
    """The policy of this node. A call reads the file only once. Raises InvalidConfig when the file cannot be used."""
    global _current
    if _current is None:
        _current = load()
    return _current


def unless_listed(names: Sequence[str], reason: str) -> str:
    """The `reason` to refuse a device to networks; "" if the policy's `uplinks` allows one of the device's `names`."""
    return "" if reason and current().allows("uplinks", names) else reason


def forget() -> None:
    """Forget the policy, so that the next call in this process reads the file again."""
    global _current
    _current = None


def load(root: str = "") -> Policy:
    """The policy of the node whose files are below `root`. Raises InvalidConfig when the policy file is unusable."""
    for path in PATHS:
        try:
            return read(root + path)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return Policy({})


def read(path: str) -> Policy:
    """The policy in the file at `path`. Raises InvalidConfig if it is unusable, FileNotFoundError if it is missing."""
    try:
        document = codec.loads(files.read_regular(path, _MOST_BYTES, private=True))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as fault:
        raise InvalidConfig(f"the node's policy {path} cannot be used: {fault.strerror}") from None
    except ValueError as fault:
        raise InvalidConfig(f"the node's policy {path} cannot be read as JSON: {fault}; correct it") from None
    if not isinstance(document, dict):
        raise InvalidConfig(f"the node's policy {path} is no JSON object: want one with {KEYS[0].name} and the like")
    return Policy(document, path)
