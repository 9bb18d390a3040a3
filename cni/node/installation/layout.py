"""The file names of an installation, its files in a plugin folder, and its faults. Every name must lead to a plugin of
railcni, each plugin must run, and the state directory must be usable. The functions raise OSError."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from cni.link.plugins import EXECUTABLES
from cni.shared.kernel.files import check_private_directory, mark, target_of

BUNDLE, TEMPORARY = "railcni-bundle", ".new."
CURRENT, PREVIOUS, REPLACED = "current", "previous", "replaced"
PROGRAMS, SCRIPTS = "bin", "libexec"  # in a version: the executables, and the scripts that they run for a cold call
COPIES = "plain"  # in a version: copies of the programs; the plain names lead to them
PLAIN = EXECUTABLES
PREFIXED = tuple(f"railcni-{name}" for name in PLAIN)
NAMES = (*PREFIXED, *PLAIN)
COMMAND, COMMANDS = "railcni", "/usr/local/bin"  # the command, and the folder of the link for administrators
_TRY_SECONDS = 30


@dataclass(frozen=True)
class Installation:
    """railcni's files in a plugin folder, and other programs' files with railcni's names."""

    current: str = ""  # the version in use; "" for none
    previous: str = ""
    versions: tuple[str, ...] = ()  # all versions
    unfinished: tuple[str, ...] = ()  # temporary files of an installer that was killed
    ours: frozenset[str] = frozenset()  # names that are railcni's links
    foreign: frozenset[str] = frozenset()  # names of other programs' files
    kept: frozenset[str] = frozenset()  # names of files in replaced/


def read(folder: str) -> Installation:
    """The installation in the plugin folder `folder`, a real path."""
    bundle = f"{folder}/{BUNDLE}"
    inside = _names(bundle)
    ours = {name for name in NAMES if target_of(f"{folder}/{name}") == target(name)}
    return Installation(
        current=_version(bundle, CURRENT),
        previous=_version(bundle, PREVIOUS),
        versions=tuple(n for n in inside if not n.startswith(".") and n != REPLACED and _is_directory(f"{bundle}/{n}")),
        unfinished=tuple(n for n in inside if n.startswith(TEMPORARY)),
        ours=frozenset(ours),
        foreign=frozenset(name for name in NAMES if name not in ours and os.path.lexists(f"{folder}/{name}")),
        kept=frozenset(NAMES).intersection(_names(f"{bundle}/{REPLACED}")),
    )


def target(name: str, version: str = CURRENT) -> str:
    """The path, relative to the plugin folder, of the plugin `name` in `version`."""
    place = COPIES if name in PLAIN else PROGRAMS
    return f"{BUNDLE}/{version}/{place}/{name.removeprefix('railcni-')}"


def _version(bundle: str, link: str) -> str:
    """The version to which `link` leads; "" when there is none."""
    name = target_of(f"{bundle}/{link}")
    return name if name and "/" not in name and _is_directory(f"{bundle}/{name}") else ""


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


# --- faults ---


def faults(folder: str, shown: str, found: Installation, state: str) -> list[str]:
    """The faults of `found` and of the state directory, as sentences that call the plugin folder `shown`."""
    return [*_of_names(folder, shown, found), *state_faults(state)]


def _of_names(folder: str, shown: str, found: Installation) -> Iterator[str]:
    if not found.current:
        there = bool(found.versions or found.ours)
        fault = f"{BUNDLE}/{CURRENT} leads to no version" if there else "railcni is not installed there"
        yield f"plugin folder {shown}: {fault}: run `railcni install`"
        return
    for name in PREFIXED:
        if name in found.foreign:
            yield f"{shown}/{name} is not railcni's: move it away and run `railcni install`"
        elif name not in found.ours:
            yield f"{shown}/{name} is missing: run `railcni install`"
    for name in sorted(found.kept & found.foreign):
        yield f"{shown}/{name} was replaced by railcni's, and is another's again: run `railcni install --replace`"
    for name in sorted(found.ours):
        if fault := fault_of(f"{folder}/{name}", name.removeprefix("railcni-")):
            yield f"{fault}; run `railcni install`"


def fingerprint(folder: str, found: Installation) -> tuple[object, ...]:
    """A value that changes when a plugin file or link changes, so that the result of `faults` may change too."""
    paths = [f"{folder}/{name}" for name in sorted(found.ours)]
    return found, *((mark(path, links=True), os.access(path, os.X_OK)) for path in paths)


def state_faults(state: str) -> Iterator[str]:
    """Yield the faults of the directory `state`. This user must be able to write to the directory, or to create it."""
    above = state
    try:
        check_private_directory(state, links=True)
    except FileNotFoundError:
        while not os.path.isdir(above) and above != "/":
            above = os.path.dirname(above)
    except OSError as fault:
        yield f"state directory {state}: {fault.strerror}"
    if not os.access(above, os.W_OK | os.X_OK):
        yield f"state directory {state} cannot be written: run as root, and check that it is not mounted read-only"


def fault_of(path: str, plugin: str) -> str:
    """Run `path` without CNI_COMMAND; return "" if the program is railcni's `plugin`, or else the reason why not."""
    try:
        done = subprocess.run([path], env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{path} did not answer in {_TRY_SECONDS} s"
    except PermissionError:
        return f"{path} cannot be executed: check whether the folder is mounted with noexec"
    except OSError as fault:
        return f"{path} cannot be executed: {fault.strerror}"
    said = (done.stderr or done.stdout).decode("utf-8", "replace")
    if f"CNI plugin {plugin} of railcni" in said:
        return ""
    if done.returncode == 0 and "CNI" in said:
        return f"{path} is no longer railcni's: another installer has overwritten it ({said.strip()[:60]})"
    return f"{path} does not answer as railcni's {plugin} (exit code {done.returncode}: {said.strip()[:200]})"
