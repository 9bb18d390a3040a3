"""One installer at a time in a plugin folder, also when the others run in containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cni.cli.installation import files
from cni.cli.installation.apply import refused
from cni.cli.installation.layout import BUNDLE, LOCK
from cni.spec.errors import TryAgainLater


@contextmanager
def only_installer(folder: str, shown: str, seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of the plugin folder `folder`, which messages call `shown`; the bundle folder is made for it.

    TryAgainLater when another holds it for `seconds`; IoFailure when it cannot be made.
    """
    import filelock  # with asyncio: 0.1 s, which what only looks at an installation need not pay

    path = f"{folder}/{BUNDLE}/{LOCK}"
    while True:
        lock = filelock.FileLock(path, timeout=seconds, mode=0o644)
        try:
            if not os.path.isdir(f"{folder}/{BUNDLE}"):
                os.mkdir(f"{folder}/{BUNDLE}", 0o755)
                files.sync(folder)
            lock.acquire()
        except filelock.Timeout:
            raise TryAgainLater(
                f"another railcni install or uninstall is at work in {shown}: wait until it has ended",
                f"{shown}/{BUNDLE}/{LOCK} is locked; `lslocks` names the process",
            ) from None
        except FileExistsError:
            continue
        except OSError as fault:
            raise refused(shown, "make the lock of the installers", fault) from None
        try:
            if os.path.exists(path):  # an uninstall that held it has removed it: the next one locks a new file
                yield
                return
        finally:
            lock.release()
