"""Install and uninstall in a plugin folder, step by step; `--dry-run` prints the steps and does not carry them out.

The process may be killed at any time: the order of the steps ensures that every name in the folder still leads to a
complete version, and that the same command, run again, finishes the work.
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

from cni.node.installation import content, files, layout
from cni.node.installation.layout import BUNDLE, COMMAND, CURRENT, NAMES, PREFIXED, REPLACED, Installation
from cni.shared.kernel import locks, netns_users
from cni.shared.kernel.files import sync, target_of
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
_Refuse = Callable[[Installation], None]


class Folder:
    """The plugin folder at the real path `path`, which messages call `shown`.

    `say` is called with the text of each step before the step is carried out. `steps` has the texts of all steps so
    far. If `foresees` is true (a dry run), no step is carried out, and `say` is not called."""

    def __init__(self, path: str, shown: str) -> None:
        self.path = path
        self.shown = shown
        self.bundle = f"{path}/{BUNDLE}"
        self.say: Callable[[str], object] = str
        self.steps: list[str] = []
        self.foresees = False

    def step(self, text: str, act: Callable[..., object], *arguments: object) -> None:
        """Make a durable change or a check, `act(*arguments)`, described by `text`. Raises IoFailure when it fails."""
        self.steps.append(text)
        if self.foresees:
            return
        self.say(text)
        try:
            act(*arguments)
        except OSError as fault:
            raise self._refused(text, fault) from None

    def put(self, text: str, path: str, make: Callable[[str], object]) -> None:
        """A step: `make` creates a file at a temporary path, which is then renamed to `path`."""
        self.step(text, files.put, path, f"{self.bundle}/{layout.TEMPORARY}file", make)

    def link(self, text: str, path: str, target: str) -> None:
        """A step: make `path` a link to `target`, in place of any file at `path`."""
        self.put(text, path, partial(os.symlink, target))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a flock of the folder, which keeps other installers away; at the end, remove the bundle folder if empty.

        Raises TryAgainLater if another installer holds the lock, and IoFailure if the folder cannot be opened or, in a
        dry run, is not writable."""
        written = self.bundle if os.path.isdir(self.bundle) else self.path
        if self.foresees and not os.access(written, os.W_OK, effective_ids=True):
            code = errno.EROFS if os.statvfs(self.path).f_flag & os.ST_RDONLY else errno.EACCES
            raise self._refused("write in it", OSError(code, os.strerror(code)))
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
                    sync(self.path)
        finally:
            os.close(lock)

    def _refused(self, action: str, fault: OSError) -> IoFailure:
        remedy = _REMEDIES.get(fault.errno or 0, "look for errors of its disk in the kernel's log")
        return IoFailure(
            f"plugin folder {self.shown}: cannot {action}: {fault.strerror or fault}; {remedy}", str(fault)
        )


# --- install ---


def install(folder: Folder, wanted: content.Content, replace: Sequence[str] = ()) -> None:
    """Install `wanted`, or finish its interrupted install. After an error the version in use stays.

    The names in `replace`, which are plugins' names without `railcni-`, become links to railcni's plugins too; other
    programs' files of these names are kept, and uninstall puts them back. Raises InvalidConfig when another program's
    file has a name with `railcni-`, TryAgainLater while another installer works, and IoFailure when a step fails."""
    with folder.locked():
        found, bundle = layout.read(folder.path), folder.bundle
        if taken := [name for name in PREFIXED if name in found.foreign]:
            message = f"{', '.join(taken)} in the plugin folder {'is' if len(taken) == 1 else 'are'} not railcni's: move it away, then install again"
            raise InvalidConfig(message)
        version = _version_for(wanted, found, bundle)
        before = found.previous if version == found.current else found.current
        old = [v for v in found.versions if v not in (version, before) and _is_unused(bundle, v)]
        for name in found.unfinished:
            folder.step(f"remove {name}, which an interrupted installer left", files.remove, f"{bundle}/{name}")
        if version not in found.versions:
            make = partial(files.make_tree, sources=wanted.sources)
            folder.put(f"copy version {version}", f"{bundle}/{version}", make)
        if version != found.current:
            folder.step(f"run the plugins of version {version}", _try, folder, version)
            if before:
                folder.link(f"remember {before} as the version before", f"{bundle}/{layout.PREVIOUS}", before)
            folder.link(f"switch to version {version}", f"{bundle}/{CURRENT}", version)
        _take(folder, found, (*PREFIXED, *replace))
        for name in old:
            folder.step(f"remove version {name}", files.remove, f"{bundle}/{name}")


def _version_for(wanted: content.Content, found: Installation, bundle: str) -> str:
    """The name of the directory for `wanted`: an installed version with this content, if possible the current one, or
    else a new name. If a damaged copy has the name, the new name ends with a number: running calls may use the copy."""
    numbered = (f"{wanted.version}.{number}".removesuffix(".0") for number in itertools.count())
    current_first = sorted(found.versions, key=lambda name: name != found.current)
    whole = (v for v in current_first if v.startswith(wanted.version) and content.is_whole(f"{bundle}/{v}"))
    return next(whole, "") or next(name for name in numbered if name not in found.versions)


def _take(folder: Folder, found: Installation, names: Iterable[str]) -> None:
    """Make `names` links to railcni's plugins. Other programs' files with these names are kept in replaced/."""
    for name in names:
        path, kept = f"{folder.path}/{name}", f"{folder.bundle}/{REPLACED}/{name}"
        if name in found.foreign:
            keep = f"keep the {name} that is there, to be put back by uninstall"
            folder.put(keep, kept, partial(files.make_second, path))
        if name not in found.ours:
            folder.link(f"link {name}", path, layout.target(name))


def _try(folder: Folder, version: str) -> None:
    for name in NAMES:
        if fault := layout.fault_of(f"{folder.path}/{layout.target(name, version)}", name.removeprefix("railcni-")):
            raise IoFailure(
                f"version {version} does not run on this host, and is not used: {fault}",
                f"it stays in {folder.shown}/{BUNDLE}/{version}; the next install removes or mends it",
            )


# --- uninstall ---


def uninstall(folder: Folder, refuse: _Refuse, end_workers: Callable[[], object] = lambda: None) -> Installation:
    """Remove the installation; return its former content. `end_workers` ends the warm workers.

    `refuse` raises an error when the installation must stay. It is called before and after the links are removed: a
    plugin that started before its link was removed may attach a pod after the first call."""
    with folder.locked():
        before = layout.read(folder.path)
        refuse(before)
        users = _users(folder, before) if folder.foresees else ""
        for name in reversed(NAMES):
            path, kept = f"{folder.path}/{name}", f"{folder.bundle}/{REPLACED}/{name}"
            if name in before.ours and name in before.kept:
                folder.step(f"put back the {name} that was there before", os.rename, kept, path)
            elif name in before.ours:
                folder.step(f"remove the link {name}", files.remove, path)
            elif name in before.kept:
                why = "another has been installed in its place since"
                folder.step(f"drop the {name} that was kept: {why}", files.remove, kept)
        if users:
            folder.step(f"wait up to {CALLS_END_SECONDS:g} s for {users}", str)
        if not folder.foresees:
            try:
                end_workers()
                _wait_for_calls(folder, before)
                refuse(before)
            except (CniError, KeyboardInterrupt):
                if before.current:
                    _take(folder, layout.read(folder.path), sorted(before.ours))
                raise
        folder.step(f"remove {BUNDLE} with all versions", _end, folder)
        return before


def _users(folder: Folder, found: Installation) -> str:
    """A text about the processes that run from a version, except this process and its parent; "" if there are none."""
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


def _end(folder: Folder) -> None:
    """Remove the bundle folder with all versions: the last step of `uninstall`, when no process runs from a version."""
    sync(folder.path)  # the restored files are on the disk before the versions go
    files.remove(f"{folder.bundle}/{CURRENT}")
    files.remove(folder.bundle)


# --- processes that run from a version; the version stays until they have ended ---
#
# A process of a bundle is recognised by its executable, the bundle's dynamic loader; a process of a checkout, by the
# open file of its modules (bin/launcher.in). Files are compared by device and inode, as containers have other paths.
# An installer in its own PID namespace, as in most containers, does not see the host's processes. Then a version
# counts as unused when `current` has not changed for _LONGEST_CALL.


def _is_unused(bundle: str, version: str) -> bool:
    """Whether no process still runs from the old `version` in the folder `bundle`."""
    if netns_users.sees_node():
        return not users_of(f"{bundle}/{version}")
    with suppress(OSError):  # the version went out of use when `current` last changed, or before
        return time.time() - os.lstat(f"{bundle}/{CURRENT}").st_mtime > _LONGEST_CALL
    return False


def users_of(directory: str, without: Collection[int] = ()) -> list[int]:
    """The PIDs of processes that run from `directory`, except those in `without`. An ending process may be missed."""
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
    libraries are not installed. Another program's file with the name `railcni` stays. If `directory` is missing, no
    link is made."""

    def __init__(self, folder: Folder, root: str, directory: str, wanted: content.Content | None = None) -> None:
        self._folder = folder
        self._shown = f"{os.path.abspath(directory)}/{COMMAND}"
        self._directory = files.below(root, os.path.abspath(directory))
        self._path = f"{self._directory}/{COMMAND}"
        self._installed = f"{folder.shown}/{BUNDLE}/{CURRENT}/{layout.PROGRAMS}/{COMMAND}"
        own = f"{wanted.top}/{layout.PROGRAMS}/{COMMAND}" if wanted and wanted.interpreter else ""
        self._target = own or self._installed

    def __str__(self) -> str:
        return self._shown if target_of(self._path) == self._target else self._target

    def make(self) -> None:
        """A step: make or change the link, if its folder is writable and no other program's file has the name."""
        leads_to = target_of(self._path)
        is_free = not os.path.lexists(self._path) or leads_to.endswith(f"/{layout.PROGRAMS}/{COMMAND}")
        if leads_to != self._target and is_free and os.access(self._directory, os.W_OK):
            put = (files.put, self._path, f"{self._directory}/.{COMMAND}.new", partial(os.symlink, self._target))
            self._folder.step(f"link {self._shown} to {self._target}", *put)

    def remove(self) -> None:
        """A step: remove the link, if it leads into this installation or to a checkout."""
        leads_to = target_of(self._path)
        if leads_to and (leads_to == self._installed or os.path.isfile(f"{os.path.dirname(leads_to)}/command.in")):
            self._folder.step(f"remove the link {self._shown}", files.remove, self._path)
