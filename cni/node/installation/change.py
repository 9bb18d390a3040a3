"""Install and uninstall in a plugin folder, as lists of steps; `--dry-run` prints the list and does not carry it out.

The order of the steps makes them safe: when the process is killed at any time, every name in the folder still leads to
a complete version, and the same command, run again, finishes the work.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from cni.node.installation import content, files, layout
from cni.node.installation.layout import BUNDLE, COMMAND, CURRENT, NAMES, PREFIXED, REPLACED, Installation
from cni.shared.kernel import locks, netns_users
from cni.shared.kernel.files import target_of
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure, TryAgainLater

CALLS_END_SECONDS = 60.0
_LONGEST_CALL = 3600.0  # seconds; a runtime ends a call after some minutes
_REMEDIES = {
    errno.ENOSPC: "free space there; nothing has changed for the runtime",
    errno.EDQUOT: "free space there; nothing has changed for the runtime",
    errno.EROFS: "it is mounted read-only: mount it writable, or name another plugin folder of the runtime with --plugin-dir",
    errno.EACCES: "run as root",
    errno.EPERM: "run as root, and check that no file there is immutable (lsattr)",
    errno.ENOENT: "something was removed from it in the meantime: run the command again",
}
_Say = Callable[[str], object]
_Refuse = Callable[[Installation], None]


class Step(NamedTuple):
    """A durable change or a check: `text` describes the step, and `act` carries it out."""

    text: str
    act: Callable[[], object]


class Folder:
    """The plugin folder at the real path `path`, which messages call `shown`."""

    def __init__(self, path: str, shown: str) -> None:
        self.path = path
        self.shown = shown
        self.bundle = f"{path}/{BUNDLE}"

    def carry_out(self, steps: Iterable[Step], say: _Say = str) -> None:
        """Carry out `steps`; before each step, pass its text to `say`. Raises IoFailure when a step fails."""
        for step in steps:
            say(step.text)
            try:
                step.act()
            except OSError as fault:
                raise self._refused(step.text, fault) from None

    def put(self, text: str, path: str, make: Callable[[str], object]) -> Step:
        """A step described by `text`: `make` creates a file at a temporary path, which is then renamed to `path`."""
        return Step(text, partial(files.put, path, f"{self.bundle}/{layout.TEMPORARY}file", make))

    def link(self, text: str, path: str, target: str) -> Step:
        """A step described by `text`: make `path` a link to `target`, in place of any file at `path`."""
        return self.put(text, path, partial(os.symlink, target))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this folder's installers, a flock of the folder; at the end, remove an empty bundle folder.

        Raises TryAgainLater if another installer holds the lock, IoFailure if the folder cannot be opened.
        """
        try:
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as fault:
            raise self._refused("lock it", fault) from None
        try:
            if not locks.try_lock_file(lock):
                raise TryAgainLater(
                    f"another railcni install or uninstall is at work in {self.shown}: wait until it has ended",
                    f"{self.shown} is locked; `lslocks` names the process",
                )
            try:
                yield
            finally:
                with suppress(OSError):
                    os.rmdir(self.bundle)
                    files.sync(self.path)
        finally:
            os.close(lock)

    @contextmanager
    def foreseen(self) -> Iterator[None]:
        """Hold the lock during a dry run. Raises IoFailure if an install could not write to the folder."""
        written = self.bundle if os.path.isdir(self.bundle) else self.path
        if not os.access(written, os.W_OK, effective_ids=True):
            code = errno.EROFS if os.statvfs(self.path).f_flag & os.ST_RDONLY else errno.EACCES
            raise self._refused("write in it", OSError(code, os.strerror(code)))
        with self.locked():
            yield

    def _refused(self, action: str, fault: OSError) -> IoFailure:
        remedy = _REMEDIES.get(fault.errno or 0, "look for errors of its disk in the kernel's log")
        return IoFailure(
            f"plugin folder {self.shown}: cannot {action}: {fault.strerror or fault}; {remedy}", str(fault)
        )


# --- install ---


def install(folder: Folder, wanted: content.Content, replace: Sequence[str] = (), say: _Say = str) -> list[Step]:
    """Install `wanted`, or finish its interrupted install; return the steps that were carried out.

    The plugin names `replace`, without `railcni-`, become links too; foreign files of these names are kept for uninstall.
    Raises InvalidConfig for a foreign file in the way, TryAgainLater while another installer works, and IoFailure when
    a step fails. The version in use then stays.
    """
    with folder.locked():
        steps = steps_to(folder, wanted, replace)
        folder.carry_out(steps, say)
        return steps


def steps_to(folder: Folder, wanted: content.Content, replace: Sequence[str] = ()) -> list[Step]:
    """The steps to install `wanted` now. Raises InvalidConfig when a foreign file has a prefixed name."""
    found, bundle = layout.read(folder.path), folder.bundle
    if taken := [name for name in PREFIXED if name in found.foreign]:
        message = f"{', '.join(taken)} in the plugin folder {'is' if len(taken) == 1 else 'are'} not railcni's: move it away, then install again"
        raise InvalidConfig(message)
    # Calls may run from a damaged version, so it stays as it is, and a second copy gets a number.
    numbered = (f"{wanted.version}.{number}".removesuffix(".0") for number in itertools.count())
    current_first = sorted(found.versions, key=lambda name: name != found.current)
    whole = (v for v in current_first if v.startswith(wanted.version) and content.is_whole(f"{bundle}/{v}"))
    version = next(whole, "") or next(name for name in numbered if name not in found.versions)
    before = found.previous if version == found.current else found.current
    steps = [_removal(f"remove {n}, which an interrupted installer left", f"{bundle}/{n}") for n in found.unfinished]
    if version not in found.versions:
        make = partial(files.make_tree, entries=wanted.entries)
        steps.append(folder.put(f"copy version {version}", f"{bundle}/{version}", make))
    if version != found.current:
        steps.append(Step(f"run the plugins of version {version}", partial(_try, folder, version)))
        if before:
            steps.append(folder.link(f"remember {before} as the version before", f"{bundle}/{layout.PREVIOUS}", before))
        steps.append(folder.link(f"switch to version {version}", f"{bundle}/{CURRENT}", version))
    steps += _take(folder, found, (*PREFIXED, *replace))
    old = [v for v in found.versions if v not in (version, before) and _is_unused(bundle, v)]
    return steps + [_removal(f"remove version {v}", f"{bundle}/{v}") for v in old]


def _removal(text: str, path: str) -> Step:
    return Step(text, partial(files.remove, path))


def _take(folder: Folder, found: Installation, names: Iterable[str]) -> Iterator[Step]:
    """Yield the steps to make railcni's links `names`; foreign files of these names are kept in replaced/."""
    for name in names:
        path, kept = f"{folder.path}/{name}", f"{folder.bundle}/{REPLACED}/{name}"
        if name in found.foreign:
            keep = f"keep the {name} that is there, to be put back by uninstall"
            yield folder.put(keep, kept, partial(files.make_second, path))
        if name not in found.ours:
            yield folder.link(f"link {name}", path, layout.target(name))


def _try(folder: Folder, version: str) -> None:
    for name in NAMES:
        if fault := layout.fault_of(f"{folder.path}/{layout.target(name, version)}", name.removeprefix("railcni-")):
            raise IoFailure(
                f"version {version} does not run on this host, and is not used: {fault}",
                f"it stays in {folder.shown}/{BUNDLE}/{version}; the next install removes or mends it",
            )


# --- uninstall ---


def uninstall(folder: Folder, refuse: _Refuse, end_workers: Callable[[], object] = lambda: None) -> Installation:
    """Remove the installation; return its former content. `refuse` raises an error when the installation must stay.

    `refuse` is called twice: a plugin that started before its link was removed may attach a pod after the first call.
    """
    with folder.locked():
        before = layout.read(folder.path)
        refuse(before)
        folder.carry_out(_release(folder, before))
        try:
            end_workers()
            _wait_for_calls(folder, before)
            refuse(before)
        except (CniError, KeyboardInterrupt):
            if before.current:
                folder.carry_out(_take(folder, layout.read(folder.path), sorted(before.ours)))
            raise
        folder.carry_out([_end(folder)])
        return before


def steps_away(folder: Folder, refuse: _Refuse) -> list[Step]:
    """The steps that `uninstall` would carry out now. Raises the errors that would prevent its first step."""
    with folder.foreseen():
        found = layout.read(folder.path)
        refuse(found)
        users = _users(folder, found)
        wait = [Step(f"wait up to {CALLS_END_SECONDS:g} s for {users}", lambda: None)] if users else []
        return [*_release(folder, found), *wait, _end(folder)]


def _release(folder: Folder, found: Installation) -> Iterator[Step]:
    """Yield the first steps of `uninstall`: remove railcni's links, and put back the kept files."""
    for name in reversed(NAMES):
        path, kept = f"{folder.path}/{name}", f"{folder.bundle}/{REPLACED}/{name}"
        if name in found.ours and name in found.kept:
            yield Step(f"put back the {name} that was there before", partial(os.rename, kept, path))
        elif name in found.ours:
            yield _removal(f"remove the link {name}", path)
        elif name in found.kept:
            yield _removal(f"drop the {name} that was kept: another has been installed in its place since", kept)


def _users(folder: Folder, found: Installation) -> str:
    """Describe the processes that run from a version, without this command and its parent; "" if there are none."""
    own = (os.getpid(), os.getppid())
    users = [(pid, v) for v in found.versions for pid in users_of(f"{folder.bundle}/{v}", own)]
    return ", ".join(f"process {pid}, which runs from version {version}" for pid, version in users)


def _wait_for_calls(folder: Folder, before: Installation) -> None:
    deadline = time.monotonic() + CALLS_END_SECONDS
    while users := _users(folder, before):
        if time.monotonic() > deadline:
            raise TryAgainLater(
                f"railcni stays in {folder.shown} because of {users}: end it, or wait until it has ended"
            )
        time.sleep(0.1)


def _end(folder: Folder) -> Step:
    """The last step of `uninstall`, when no process runs from a version."""

    def remove() -> None:
        files.sync(folder.path)  # the restored files are on the disk before the versions go
        files.remove(f"{folder.bundle}/{CURRENT}")
        files.remove(folder.bundle)

    return Step(f"remove {BUNDLE} with all versions", remove)


# --- processes that run from a version; the version stays until they have ended ---
#
# A process is recognised by its executable or an open file: in a bundle, it executes the bundle's dynamic loader; in
# a checkout, it keeps its modules open (bin/launcher.in). Files are compared by device and inode, since a process in a
# container has other paths. In a PID namespace of its own, as in most containers, an installer does not see the host's
# processes; then a version counts as unused when `current` has not changed for _LONGEST_CALL.


def _is_unused(bundle: str, version: str) -> bool:
    """Whether no process runs any more from the old `version` in the folder `bundle`."""
    if netns_users.sees_node():
        return not users_of(f"{bundle}/{version}")
    with suppress(OSError):  # `current` last changed at this time; the version went out of use then or before
        return time.time() - os.lstat(f"{bundle}/{CURRENT}").st_mtime > _LONGEST_CALL
    return False


def users_of(directory: str, without: Collection[int] = ()) -> list[int]:
    """The PIDs of processes that run from `directory`, except those in `without`. Ending processes may be missed."""
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names)
    own = {(status.st_dev, status.st_ino) for status in map(os.lstat, paths)}
    processes = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in processes if pid not in without and not own.isdisjoint(_opened(pid))]


def _opened(pid: int) -> Iterator[tuple[int, int]]:
    for path in (f"/proc/{pid}/exe", *glob.iglob(f"/proc/{pid}/fd/*")):
        with suppress(OSError):  # the process has ended, has closed the file, or is another user's
            status = os.stat(path)
            yield status.st_dev, status.st_ino


# --- the link to the command, for administrators ---


class CommandLink:
    """The link `railcni` in `directory` of the host mounted at `root`. `wanted` is the content to be installed.

    The link leads to the command of the version in use; for a checkout it leads into the checkout, since the command's
    libraries are not installed. A foreign file stays. If `directory` is missing, no link is made.
    """

    def __init__(self, folder: Folder, root: str, directory: str, wanted: content.Content | None = None) -> None:
        self._shown = f"{os.path.abspath(directory)}/{COMMAND}"
        self._directory = files.below(root, os.path.abspath(directory))
        self._path = f"{self._directory}/{COMMAND}"
        self._installed = f"{folder.shown}/{BUNDLE}/{CURRENT}/{layout.PROGRAMS}/{COMMAND}"
        own = f"{wanted.top}/{layout.PROGRAMS}/{COMMAND}" if wanted and wanted.interpreter else ""
        self._target = own or self._installed

    def __str__(self) -> str:
        return self._shown if target_of(self._path) == self._target else self._target

    def made(self) -> Iterator[Step]:
        """Yield the step to make the link, unless it exists, its folder is missing, or a foreign file has the name."""
        leads_to = target_of(self._path)
        is_free = not os.path.lexists(self._path) or leads_to.endswith(f"/{layout.PROGRAMS}/{COMMAND}")
        if leads_to != self._target and is_free and os.access(self._directory, os.W_OK):
            make = partial(os.symlink, self._target)
            put = partial(files.put, self._path, f"{self._directory}/.{COMMAND}.new", make)
            yield Step(f"link {self._shown} to {self._target}", put)

    def removed(self) -> Iterator[Step]:
        """Yield the step to remove the link, if it leads into this installation or to a checkout."""
        leads_to = target_of(self._path)
        if leads_to and (leads_to == self._installed or os.path.isfile(f"{os.path.dirname(leads_to)}/command.in")):
            yield _removal(f"remove the link {self._shown}", self._path)
