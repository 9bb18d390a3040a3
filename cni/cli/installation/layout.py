"""Names of an installation, and what install and uninstall do step by step. Pure.

The order of the steps is what makes them safe: a process that is killed between any two of them, or within one, leaves
a folder in which every name leads to a whole version, and from which the same command goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cni.spec.errors import InvalidConfig

BUNDLE, LOCK, TEMPORARY = "railcni-bundle", ".lock", ".new."
CURRENT, PREVIOUS, REPLACED = "current", "previous", "replaced"
PROGRAMS, COPIES = "bin", "plain"  # of a version: what the prefixed names lead to, and the plain ones
PLAIN = ("macvlan", "host-device", "sriov", "rdma", "whereabouts")
PREFIXED = tuple(f"railcni-{name}" for name in PLAIN)
NAMES = (*PREFIXED, *PLAIN)

Action = Literal[
    "clean", "put", "try", "precede", "switch", "keep", "link", "remove", "restore", "unlink", "forget", "retire"
]
_TEXTS: dict[Action, str] = {
    "clean": "remove what an interrupted installer left: {}",
    "put": "copy version {}",
    "try": "run the plugins of version {}",
    "precede": "remember {} as the version before",
    "switch": "switch to version {}",
    "keep": "keep the {} that is there, to be put back by uninstall",
    "link": "link {}",
    "remove": "remove version {}",
    "restore": "put back the {} that was there before",
    "unlink": "remove the link {}",
    "forget": "drop the {} that was kept: another has been installed in its place since",
    "retire": "take version {} out of use",
}


@dataclass(frozen=True)
class Step:
    """One change, or with "try" the test before it. `subject` is a version, a name, or a file of the bundle folder."""

    action: Action
    subject: str

    def __str__(self) -> str:
        return _TEXTS[self.action].format(self.subject)


@dataclass(frozen=True)
class Facts:
    """What a plugin folder holds of an installation."""

    current: str = ""  # the version in use; "" for none
    previous: str = ""
    versions: tuple[str, ...] = ()  # all that are there
    leftovers: tuple[str, ...] = ()
    ours: frozenset[str] = frozenset()  # names that are our links
    foreign: frozenset[str] = frozenset()  # names that are there and something else
    kept: frozenset[str] = frozenset()  # names that are in replaced/


def target(name: str) -> str:
    """Where the link `name` of the plugin folder leads."""
    place = COPIES if name in PLAIN else PROGRAMS
    return f"{BUNDLE}/{CURRENT}/{place}/{name.removeprefix('railcni-')}"


def choose(wanted: str, versions: Sequence[str], is_whole: Callable[[str], bool]) -> tuple[str, bool]:
    """The directory for the version `wanted`, and whether it is there already: one that was damaged is not mended under
    the calls that may run from it, a second copy is put beside it."""
    number = 0
    while True:
        name = f"{wanted}.{number}" if number else wanted
        if name not in versions:
            return name, False
        if is_whole(name):
            return name, True
        number += 1


def plan_install(
    facts: Facts, version: str, is_there: bool, replace: bool, is_unused: Callable[[str], bool]
) -> list[Step]:
    """The steps to `version`; `is_unused` says whether nothing runs from a version. InvalidConfig: a name is taken."""
    taken = [name for name in PREFIXED if name in facts.foreign]
    if taken:
        raise InvalidConfig(
            f"{', '.join(taken)} in the plugin folder {'is' if len(taken) == 1 else 'are'} not railcni's: move it away, then"
            " install again"
        )
    steps = [Step("clean", name) for name in facts.leftovers]
    if not is_there:
        steps.append(Step("put", version))
    if version != facts.current:
        steps.append(Step("try", version))
        if facts.current:
            steps.append(Step("precede", facts.current))
        steps.append(Step("switch", version))
    for name in NAMES if replace else PREFIXED:
        if name in facts.foreign:
            steps.append(Step("keep", name))
        if name not in facts.ours:
            steps.append(Step("link", name))
    before = facts.previous if version == facts.current else facts.current
    old = [v for v in facts.versions if v not in (version, before)]
    return steps + [Step("remove", v) for v in old if is_unused(v)]


def plan_release(facts: Facts) -> list[Step]:
    """The first half of an uninstall: the names go, or become again what they were."""
    steps = []
    for name in reversed(NAMES):
        if name in facts.ours:
            steps.append(Step("restore" if name in facts.kept else "unlink", name))
        elif name in facts.kept:
            steps.append(Step("forget", name))
    return steps


def plan_removal(facts: Facts) -> list[Step]:
    """The second half, when nothing runs from the versions any more: they go. What then is left of BUNDLE goes too."""
    steps = [Step("clean", name) for name in facts.leftovers]
    steps += [Step("retire", facts.current)] if facts.current else []
    return steps + [Step("remove", version) for version in facts.versions]
