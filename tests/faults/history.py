"""A history of ADDs and DELs, recorded: what each call wrote and answered, and what must stand at any point of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.inject import Injector
from tests.faults.journal import RECORDED, TOP, Began, Ended, Journal
from tests.faults.scene import IFNAME, Attachment, Scene
from tests.faults.trace import parse


@dataclass(frozen=True)
class Step:
    """A call of a history: the verb, and whose attachment; `pod` when it is another sandbox of that pod. One with
    `killed` is killed before the last call of that name that the verb made in the step before it of this verb; when it
    made none, before its last call that syncs anything."""

    verb: str
    who: str
    pod: str = ""
    killed: str = ""


_LIFE = (
    *(Step("ADD", "a"), Step("ADD", "b"), Step("DEL", "a"), Step("ADD", "c"), Step("ADD", "d", pod="c")),
    *(Step("DEL", "c", pod="c"), Step("DEL", "b"), Step("GC", "d"), Step("ADD", "e"), Step("DEL", "d", pod="c")),
)
_RETRIES = (
    *(Step("ADD", "a"), Step("ADD", "b", killed="fdatasync"), Step("ADD", "b"), Step("DEL", "a")),
    *(Step("DEL", "b", killed="fdatasync"), Step("DEL", "b"), Step("ADD", "c"), Step("ADD", "d", killed="fsync")),
    *(Step("ADD", "d"), Step("DEL", "c", killed="fsync"), Step("DEL", "c"), Step("DEL", "d")),
)
HISTORIES = {
    "first": _LIFE,
    "crowded": _LIFE,  # there are leases of many others, so that pages split
    "retries": _RETRIES,  # what a killed call has written and not synced, the next one finds, and answers by it
}
CROWD = 70


@dataclass
class Expectation:
    """What must stand after a point of a history: addresses by container, containers that have none, and those of which
    nothing is sure, because a call is under way; but the addresses `moving` must be leased to somebody."""

    leased: dict[str, list[str]] = field(default_factory=dict)
    moving: list[str] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)


@dataclass
class Recording:
    """A journal, and what each of its calls was told: the addresses that an ADD gave."""

    name: str
    journal: Journal
    steps: Sequence[Step]
    given: list[list[str]]
    crowd: int

    def expected(self, point: int) -> Expectation:
        """What must stand after a power loss behind the entry `point`."""
        expectation = Expectation()
        for entry in self.journal.entries[: point + 1]:
            if isinstance(entry, Began):
                step = self.steps[entry.number]
                expectation.unsure = {"a", "b", "c", "d", "e"} - {step.who} if step.verb == "GC" else {step.who}
                if step.pod and step.verb == "ADD":
                    expectation.unsure.add(step.pod)
                    expectation.moving = expectation.leased[step.pod]
            elif isinstance(entry, Ended):
                self._end(expectation, entry.number)
        return expectation

    def _end(self, expectation: Expectation, number: int) -> None:
        step = self.steps[number]
        expectation.unsure, expectation.moving = set(), []
        if step.verb == "ADD":
            expectation.leased[step.who] = self.given[number]
            expectation.freed.discard(step.who)
            if step.pod:
                expectation.leased.pop(step.pod, None)
        elif step.verb == "DEL":
            expectation.leased.pop(step.who, None)
            expectation.freed.add(step.who)


def record(name: str, executables: Path) -> Recording:
    """Run the history under strace and keep what it wrote."""
    steps = HISTORIES[name]
    with (
        Scene("macvlan", executables, first=True) as scene,
        Injector(scene.node) as injector,
        tempfile.TemporaryDirectory() as folder,
    ):
        crowd = CROWD if name == "crowded" else 0
        for k in range(crowd):
            _lease(scene, f"crowd-{k:03}")
        before = Path(folder) / "before"
        shutil.copytree(scene.node.path(TOP), before)
        journal = Journal(before)
        given: list[list[str]] = []
        counts: dict[tuple[str, str], int] = {}
        syncs: dict[str, str] = {}  # the name of the last call that syncs, by verb
        for number, step in enumerate(steps):
            who = _attachment(scene, step)
            command = scene.command(step.verb, who, [who])
            kill = []
            if step.killed:
                last = step.killed if (step.verb, step.killed) in counts else syncs[step.verb]
                kill = ["-e", f"inject={last}:signal=KILL:when={counts[step.verb, last]}"]
            outcome, text = injector.record(command, "-xx", "-s", "1000000", "-e", f"trace={RECORDED}", *kill)
            calls = parse(text)
            if outcome.killed and kill:
                given.append([])
                journal.record(calls, number, finished=False)
                continue
            if outcome.reply is None:
                raise RuntimeError(f"{step} was not answered: {outcome.faults}")
            reply = outcome.reply.succeeded()
            given.append([a["address"].split("/")[0] for a in reply["ips"]] if reply else [])
            journal.record(calls, number)
            syncs[step.verb] = next((c.name for c in reversed(calls) if c.name in ("fsync", "fdatasync")), "")
            counts = {(step.verb, c.name): c.ordinal for c in calls} | {
                k: v for k, v in counts.items() if k[0] != step.verb
            }
        live = {path: data for path, data in journal.live.tree().items() if data is not None}
        real = {
            str(p.relative_to(scene.node.path(TOP))): p.read_bytes()
            for p in scene.node.path(TOP).rglob("*")
            if p.is_file()
        }
        if live != real:
            raise RuntimeError(
                f"the journal misses something of {sorted(k for k in {*live, *real} if live.get(k) != real.get(k))}"
            )
        return Recording(name, journal, steps, given, crowd)


def _attachment(scene: Scene, step: Step) -> Attachment:
    pods = scene.node.pods
    pod = pods.get(step.who) or scene.node.pod(step.who)
    return Attachment(step.who, step.pod or step.who, pod, "")


def _lease(scene: Scene, container: str) -> None:
    """A lease alone, without a link: the IPAM plugin is called as other link plugins call it."""
    named = {"container_id": container, "ifname": IFNAME, "netns": "/dev/null", "path": [scene.node.executables]}
    scene.node.cni("whereabouts", "ADD", {**scene.config(), "name": "crowd"}, **named).succeeded()
