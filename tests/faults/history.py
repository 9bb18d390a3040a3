"""A history of ADDs and DELs, recorded: what each call wrote and answered, and what may stand at any point of it."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.inject import Injector
from tests.faults.journal import RECORDED, TOP, Began, Journal
from tests.faults.scene import IFNAME, Attachment, Scene
from tests.faults.trace import parse


@dataclass(frozen=True)
class Step:
    """A call of a history: the verb, and whose attachment; `pod` when it is another sandbox of that pod. One with
    `killed` is killed before the last call of that name that the verb made in the step before it of this verb."""

    verb: str
    who: str
    pod: str = ""
    killed: str = ""


_LIFE = (
    *(Step("ADD", "a"), Step("ADD", "b"), Step("DEL", "a"), Step("ADD", "c"), Step("ADD", "d", pod="c")),
    *(Step("DEL", "c", pod="c"), Step("DEL", "b"), Step("GC", "d"), Step("ADD", "e"), Step("DEL", "d", pod="c")),
)
_RETRIES = (
    *(Step("ADD", "a"), Step("ADD", "b", killed="pwrite64"), Step("ADD", "b"), Step("DEL", "a")),
    *(Step("DEL", "b", killed="pwrite64"), Step("DEL", "b"), Step("ADD", "c"), Step("ADD", "d", killed="rename")),
    *(Step("ADD", "d"), Step("DEL", "c", killed="unlink"), Step("DEL", "c"), Step("DEL", "d")),
)
HISTORIES = {
    "first": _LIFE,
    "near_full": _LIFE,  # there are leases of many others, so that pages split
    "retries": _RETRIES,  # what a killed call has left half done, the next one finds, and answers by it
}
CROWD = 70


def is_killed(steps: Sequence[Step]) -> bool:
    """Whether a call of the history is killed. Of a warm worker's the cold path writes the rest, which is not recorded."""
    return any(step.killed for step in steps)


@dataclass
class Expectation:
    """What may stand after a point of a history: the addresses that each container was ever given, or is being given."""

    given: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Recording:
    """A journal, and what each of its calls was told: the addresses that an ADD gave."""

    name: str
    journal: Journal
    steps: Sequence[Step]
    given: list[list[str]]
    crowd: int

    def expected(self, point: int) -> Expectation:
        """What may stand after a power loss behind the entry `point`."""
        expectation = Expectation()
        for entry in self.journal.entries[: point + 1]:
            if isinstance(entry, Began):
                step = self.steps[entry.number]
                known = expectation.given.setdefault(step.who, [])
                known += self.given[entry.number]
                if step.killed:  # its answer would have been that of the next call, which tries again
                    known += self.given[entry.number + 1]
        return expectation


def record(name: str, executables: Path) -> Recording:
    """Run the history under strace and keep what it wrote."""
    steps = HISTORIES[name]
    with (
        Scene("macvlan", executables, first=True) as scene,
        Injector(scene.node) as injector,
        tempfile.TemporaryDirectory() as folder,
    ):
        crowd = CROWD if name == "near_full" else 0
        for k in range(crowd):
            _lease(scene, f"crowd-{k:03}")
        before = Path(folder) / "before"
        shutil.copytree(scene.node.path(TOP), before)
        journal = Journal(before)
        given: list[list[str]] = []
        counts: dict[tuple[str, str], int] = {}
        for number, step in enumerate(steps):
            who = _attachment(scene, step)
            command = scene.command(step.verb, who, [who])
            kill = []
            if step.killed:
                kill = ["-e", f"inject={step.killed}:signal=KILL:when={counts[step.verb, step.killed]}"]
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
