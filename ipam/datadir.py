"""The directories in which a network may keep leases: those of railcni, never those of another program."""

from __future__ import annotations

import os

from cni.shared import policy
from cni.shared.kernel import files
from ipam.keys import DATA_DIR

_LEASES = "leases.db"  # the lease file; the names of its companion files begin with this name
_FORMER_ROOTS = ("/var/lib/cni", "/run/cni")  # the default of dataRoots in version 0.1.0
_FILE_TYPE, _REGULAR, _DIRECTORY = 0o170000, 0o100000, 0o040000
_NAME_MAX = 255  # bytes (include/uapi/linux/limits.h)


def confined(path: str) -> str:
    """The directory at `path`, with links resolved. Raises ValueError when leases may not be kept in the directory.

    Allowed are the node's own store and directories below `dataRoots` of the node's policy. If dataRoots is not set,
    directories that version 0.1.0 allowed are allowed too, if they contain a lease file. The author of a network need
    not be an administrator. A new file in another program's directory does harm: host-local takes each file name in
    /var/lib/cni/networks/NETWORK for an address in use.
    """
    allowed = policy.current()
    try:
        resolved, state = files.resolve(path), files.resolve(DATA_DIR)
    except OSError as fault:
        raise ValueError(f"cannot be followed: {fault.strerror}") from None
    if resolved == state:
        return DATA_DIR
    roots = policy.followed(allowed.dataRoots)
    former = policy.followed(_FORMER_ROOTS) if allowed.dataRoots is policy.DATA_ROOTS else []
    has_leases = _has_leases(resolved)
    if has_leases and any(files.is_below(resolved, root) for root in former):
        return resolved
    allowed.confine("dataRoots", path)
    if has_leases or resolved in roots:
        return resolved
    parts = resolved.split("/")
    if any(len(part.encode()) > _NAME_MAX for part in parts):
        raise ValueError(f"has a part of more than {_NAME_MAX} bytes: File name too long")
    if any(part.startswith(_LEASES) for part in parts):
        raise ValueError(f"has a part that begins with {_LEASES}, as the names of lease files do: want another name")
    if files.is_below(resolved, state) and not files.is_below(resolved, f"{state}/stores"):
        raise ValueError(f"is among railcni's own records: want a directory below {DATA_DIR}/stores")
    holder = _nearest(resolved)
    is_inside = any(holder != root and files.is_below(holder, root) for root in roots)
    has_files = is_inside and any(not _is(f"{holder}/{name}", _DIRECTORY) for name in files.names_in(holder))
    if has_files and not _has_leases(holder):
        what = "holds" if holder == resolved else f"is to be made in {holder[:60]}, which holds"
        raise ValueError(
            f"{what} files of others: want a directory for railcni alone, such as one in {DATA_DIR}/stores"
        )
    root = next(root for root in roots if files.is_below(resolved, root))
    new = resolved.count("/") - max(holder, root, key=len).count("/")
    if new and _has_more_directories(root, allowed.dataDirs - new):
        text = f"would be one directory too many for dataDirs ({allowed.dataDirs}): want an existing one, or change"
        raise ValueError(f"{text} {allowed.path}")
    return resolved


def _nearest(path: str) -> str:
    """The directory at `path` or, if it does not exist, the nearest existing directory above it."""
    while path and not _is(path, _DIRECTORY):
        path = path.rpartition("/")[0]
    return path or "/"


def _has_more_directories(root: str, most: int) -> bool:
    found = [root]
    for directory in found:
        inner = [f"{directory}/{name}" for name in files.names_in(directory)]
        found += [path for path in inner if _is(path, _DIRECTORY)]
        if len(found) - 1 > most:
            return True
    return False


def _has_leases(directory: str) -> bool:
    return any(name.startswith(_LEASES) and _is(f"{directory}/{name}", _REGULAR) for name in files.names_in(directory))


def _is(path: str, kind: int) -> bool:
    try:
        return os.stat(path, follow_symlinks=False).st_mode & _FILE_TYPE == kind
    except OSError:
        return False
