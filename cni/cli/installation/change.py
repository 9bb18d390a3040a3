"""Install and uninstall in a plugin folder: facts, plan, steps, under the installers' lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cni.cli.installation import facts, running, source
from cni.cli.installation.apply import Folder
from cni.cli.installation.layout import PLAIN, Facts, Step, choose, plan_install, plan_release, plan_removal
from cni.cli.installation.lock import only_installer
from cni.spec.errors import CniError, TryAgainLater

CALLS_END_SECONDS = 60.0


def steps_to(folder: Folder, wanted: source.Source, replace: bool) -> list[Step]:
    """What an install of `wanted` would do now; InvalidConfig when a name is another's."""
    found = facts.read(folder.path)
    version, there = choose(wanted.version, found.versions, lambda name: source.is_whole(f"{folder.bundle}/{name}"))
    own = os.path.basename(wanted.top) if os.path.dirname(wanted.top) == folder.bundle else ""

    def unused(name: str) -> bool:
        return name != own and running.is_unused(folder.path, name)

    return plan_install(found, version, there, replace, unused)


def install(
    folder: Folder, wanted: source.Source, replace: bool, report: Callable[[int], None] = lambda count: None
) -> list[Step]:
    """Install `wanted`, or finish what another install of it began; the steps that were taken.

    `report` gets the bytes that are written. InvalidConfig, TryAgainLater, IoFailure: what is used is as it was.
    """
    with only_installer(folder.path, folder.shown):
        steps = steps_to(folder, wanted, replace)
        folder.apply(steps, wanted, report)
        return steps


def uninstall(folder: Folder, refuse: Callable[[Facts], None]) -> Facts:
    """Take out what is there; the facts from before. `refuse` raises when it must not be: it is asked twice, because a
    call that began while the names were there may attach something after the first time."""
    with only_installer(folder.path, folder.shown):
        before = facts.read(folder.path)
        refuse(before)
        folder.apply(plan_release(before))
        try:
            _wait_for_calls(folder, before)
            refuse(before)
        except (CniError, KeyboardInterrupt):
            _put_back(folder, before)
            raise
        folder.apply(plan_removal(facts.read(folder.path)))
        folder.remove_rest()
        return before


def _wait_for_calls(folder: Folder, before: Facts) -> None:
    """Wait for the plugins that still run, as far as they can be seen."""
    deadline = time.monotonic() + CALLS_END_SECONDS
    besides = (os.getpid(), os.getppid())  # this command may run from there itself
    for version in before.versions:
        while users := running.users(f"{folder.bundle}/{version}", besides):
            if time.monotonic() > deadline:
                raise TryAgainLater(
                    f"railcni stays in {folder.shown}: process {', '.join(map(str, users))} still runs from version {version}:"
                    " end it, or wait until it has ended"
                )
            time.sleep(0.1)


def _put_back(folder: Folder, before: Facts) -> None:
    """The names lead again to the version that was in use."""
    if before.current:
        replace = any(name in before.ours for name in PLAIN)
        steps = plan_install(facts.read(folder.path), before.current, True, replace, lambda name: False)
        folder.apply(s for s in steps if s.action in ("keep", "link") and s.subject in before.ours)
