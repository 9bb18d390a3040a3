"""Whether an installation is whole: every name leads to a plugin of ours that runs, and the state can be kept."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cni.cli.installation.apply import fault_of
from cni.cli.installation.layout import BUNDLE, CURRENT, PREFIXED, Facts
from cni.kernel import files


def faults(folder: str, shown: str, facts: Facts, state: str) -> list[str]:
    """What is wrong, in words; [] when all is well. `folder` is the plugin folder's real path, `shown` its name."""
    return [*_links(shown, facts), *_programs(folder, facts), *state_faults(state)]


def fingerprint(folder: str, facts: Facts) -> tuple[object, ...]:
    """What differs when a plugin has been changed since: then it has to be run again to know whether it works."""
    seen: list[object] = [facts]
    for name in sorted(facts.ours):
        try:
            status = os.stat(f"{folder}/{name}")
            seen.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode))
        except OSError as fault:
            seen.append((name, fault.errno))
    return tuple(seen)


def state_faults(state: str) -> Iterator[str]:
    """What is wrong with the state directory; it need not exist, but must be ours to make and to write."""
    above = state
    try:
        files.check_private_directory(state, links=True)
    except FileNotFoundError:
        while not os.path.isdir(above) and above != "/":
            above = os.path.dirname(above)
    except files.NotPrivate as fault:
        yield f"state directory {state}: {fault.strerror}"
    except OSError as fault:
        yield f"state directory {state}: {fault.strerror}"
    if not os.access(above, os.W_OK | os.X_OK):
        yield f"state directory {state} cannot be written: run as root, and see that it is not mounted read-only"


def _links(shown: str, facts: Facts) -> Iterator[str]:
    if not facts.current:
        there = bool(facts.versions or facts.ours)
        what = f"{BUNDLE}/{CURRENT} leads to no version" if there else "railcni is not installed there"
        yield f"plugin folder {shown}: {what}: run `railcni install`"
        return
    for name in PREFIXED:
        if name in facts.foreign:
            yield f"{shown}/{name} is not railcni's: move it away and run `railcni install`"
        elif name not in facts.ours:
            yield f"{shown}/{name} is missing: run `railcni install`"
    for name in sorted(facts.kept & facts.foreign):
        yield f"{shown}/{name} was replaced by railcni's, and is another's again: run `railcni install --replace`"


def _programs(folder: str, facts: Facts) -> Iterator[str]:
    if facts.current:
        for name in sorted(facts.ours):
            if fault := fault_of(f"{folder}/{name}", name.removeprefix("railcni-")):
                yield f"{fault}; run `railcni install`"
