"""Carrying out the steps of a plan, in a plugin folder. Each is durable when it is done."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterable

from cni.cli.installation import files
from cni.cli.installation.layout import (
    BUNDLE,
    COPIES,
    CURRENT,
    LOCK,
    PLAIN,
    PREVIOUS,
    PROGRAMS,
    REPLACED,
    TEMPORARY,
    Step,
    target,
)
from cni.cli.installation.source import Source
from cni.spec.errors import IoFailure

_TRY_SECONDS = 30
_REMEDIES = {
    errno.ENOSPC: "free space there; nothing has changed for the runtime",
    errno.EDQUOT: "free space there; nothing has changed for the runtime",
    errno.EROFS: "it is mounted read-only: mount it writable, or name another plugin folder of the runtime with --to",
    errno.EACCES: "run as root",
    errno.EPERM: "run as root, and see that no file there is immutable (lsattr)",
    errno.ENOENT: "something was removed from it in the meantime: run the command again",
}


class Folder:
    """The plugin folder at the real path `path`, which messages call `shown`."""

    def __init__(self, path: str, shown: str) -> None:
        self.path = path
        self.shown = shown
        self.bundle = f"{path}/{BUNDLE}"

    def apply(
        self, steps: Iterable[Step], source: Source | None = None, report: Callable[[int], None] = lambda count: None
    ) -> None:
        """Carry out `steps`; `report` gets the bytes that are written. IoFailure names the step that failed."""
        for step in steps:
            try:
                self._do(step, source, report)
            except OSError as fault:
                raise refused(self.shown, str(step), fault) from None

    def _do(self, step: Step, source: Source | None, report: Callable[[int], None]) -> None:
        subject = step.subject
        named, kept = f"{self.path}/{subject}", f"{self.bundle}/{REPLACED}/{subject}"
        temporary, inside = f"{self.bundle}/{TEMPORARY}link", f"{self.bundle}/{subject}"
        if step.action == "put":
            files.write_tree(inside, source.entries if source else (), report)
        elif step.action == "try":
            for name in PLAIN:
                for place in (PROGRAMS, COPIES):
                    if fault := fault_of(f"{inside}/{place}/{name}", name):
                        raise IoFailure(
                            f"version {subject} does not run on this host, and is not used: {fault}",
                            f"it stays in {self.shown}/{BUNDLE}/{subject}; the next install removes or mends it",
                        )
        elif step.action in ("switch", "precede"):
            link = CURRENT if step.action == "switch" else PREVIOUS
            files.put_link(f"{self.bundle}/{link}", subject, temporary)
        elif step.action == "link":  # a link's target is read from where the link is, so it can be made elsewhere
            files.put_link(named, target(subject), temporary)
        elif step.action == "keep":
            files.keep(named, kept, temporary)
        elif step.action == "restore":
            files.move(kept, named)
        elif step.action == "unlink":
            files.remove(named)
        elif step.action == "forget":
            files.remove(kept)
        elif step.action == "retire":
            files.remove(f"{self.bundle}/{CURRENT}")
            files.remove(f"{self.bundle}/{PREVIOUS}")
        else:
            files.remove_tree(inside)

    def remove_rest(self) -> None:
        """Remove the bundle folder, in which no version is left."""
        try:
            files.remove_tree(f"{self.bundle}/{REPLACED}")
            files.remove(f"{self.bundle}/{PREVIOUS}")
            files.remove(f"{self.bundle}/{LOCK}")
            os.rmdir(self.bundle)
            files.sync(self.path)
        except OSError as fault:
            raise refused(self.shown, f"remove {BUNDLE}", fault) from None


def refused(folder: str, action: str, fault: OSError) -> IoFailure:
    """The error for what failed in the plugin folder."""
    remedy = _REMEDIES.get(fault.errno or 0, "see the kernel's log for errors of its disk")
    return IoFailure(f"plugin folder {folder}: cannot {action}: {fault.strerror or fault}; {remedy}", str(fault))


def fault_of(path: str, plugin: str) -> str:
    """Why the executable at `path` is not our `plugin`, in words; "" when it is: it says so when it is run by hand."""
    try:
        done = subprocess.run([path], env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{path} did not answer in {_TRY_SECONDS} s"
    except PermissionError:
        return f"{path} cannot be executed: see whether the folder is mounted with noexec"
    except OSError as fault:
        return f"{path} cannot be executed: {fault.strerror}"
    said = (done.stderr or done.stdout).decode("utf-8", "replace")
    if f"CNI plugin {plugin} of railcni" in said:
        return ""
    if done.returncode == 0 and "CNI" in said:
        return f"{path} is no longer railcni's: another installer has overwritten it ({said.strip()[:60]})"
    return f"{path} does not answer as railcni's {plugin} (exit code {done.returncode}: {said.strip()[:200]})"
