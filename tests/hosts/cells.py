"""The cells of the matrix: which there are, which of them `make test` runs, and how one is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts import dump, features, table
from tests.hosts.endings import ENDINGS, refused
from tests.hosts.host import Host
from tests.hosts.scenes import HOST_DEVICE, MODES, PLUGINS, SCENES, Scene
from tests.node import Node

EQUAL, LOST, REFUSED, DIFFERENT, SKIPPED = "equal", "lost as told", "refused", "different", "skipped"
_SECONDS = 2.0  # without a change: what the kernel and routers do a moment later is done
_SHOWN = 12
_ELSEWHERE = ("plain", "dhcp-lease", "ecmp-over-two-nics", "set-up-meanwhile", "routes-with-attributes")

MACVLANS = tuple(f"macvlan-{mode}" for mode in MODES)

Cell = tuple[str, str, str]  # scene, plugin, ending


@dataclass
class Verdict:
    """`outcome` is one of the words above; `faults` are the answers that were wrong, `differences` the lines of the host."""

    outcome: str
    faults: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    why: str = ""

    def __str__(self) -> str:
        more = len(self.differences) - _SHOWN
        lines = [*self.faults, *self.differences[:_SHOWN], *([f"and {more} more lines"] if more > 0 else [])]
        return "\n".join(lines)


def name(cell: Cell) -> str:
    return "/".join(cell)


def every(plugins: Sequence[str] = PLUGINS) -> list[Cell]:
    """All cells of these plugins. A device that is to be refused has one cell, since no attachment is there to end."""
    return [
        (scene.name, plugin, ending)
        for scene in SCENES.values()
        for plugin in plugins
        for ending in ((REFUSED,) if refusal(scene, plugin) else ENDINGS)
    ]


def sample(plugins: Sequence[str] = PLUGINS) -> list[Cell]:
    """The cells of `make test`: every scene with macvlan in one mode and one ending, and with host-device in one ending;
    every refusal; every plugin with every ending. The choice is always the same."""
    chosen: list[Cell] = []
    turn = 0
    for number, scene in enumerate(SCENES.values()):
        chosen += [(scene.name, p, REFUSED) for p in (HOST_DEVICE, "macvlan-passthru") if refusal(scene, p)]
        if not refusal(scene, HOST_DEVICE):
            chosen.append((scene.name, HOST_DEVICE, tuple(ENDINGS)[number % len(ENDINGS)]))
        modes = [mode for mode in MACVLANS if not refusal(scene, mode)]
        if modes:
            wanted = MACVLANS[turn % len(MACVLANS)]
            ending = tuple(ENDINGS)[turn // len(MACVLANS) % len(ENDINGS)]
            chosen.append((scene.name, wanted if wanted in modes else modes[turn % len(modes)], ending))
            turn += wanted in modes and not scene.needs  # a scene that is skipped here takes nobody's turn
    return [cell for cell in chosen if cell[1] in plugins]


def run(cell: Cell, executables: Path) -> Verdict:
    """Run one cell, on a node of its own."""
    scene, plugin, ending = SCENES[cell[0]], cell[1], cell[2]
    why = features.missing(scene.needs)
    if why:
        return Verdict(SKIPPED, why=why)
    with Node(executables, is_forked=True) as node, Host(scene, plugin, node) as host:
        return judged(host, ending)


def judged(host: Host, ending: str) -> Verdict:
    """End the attachment in that way, and compare the host with what it was."""
    scene = host.scene
    words = refusal(scene, host.plugin)
    faults = ENDINGS[ending](host) if words is None else refused(host, words)
    moved = host.plugin == HOST_DEVICE and words is None
    lost = [special for special in scene.has if moved and table.fate(special.row) == table.LOST]
    gone: list[dump.Difference] = []

    def accepts(difference: dump.Difference) -> bool:
        if any(special.covers(difference.line.kind, difference.line.text) for special in lost):
            gone.append(difference)
            return True
        return False

    found = dump.restored(host.eyes, host.before, accepts, _SECONDS)
    faults += [f"left behind: {what}" for what in host.node.leftovers(settle=_SECONDS)]
    if host.is_attached and ending != "killed":  # the retried ADD finds a device that has lost it already
        silent = [s.row for s in lost if table.is_told(s.row) and s.logged not in host.told]
        faults += [f"the log of ADD does not say that the device loses: {what}" for what in silent]
    if faults or found:
        return Verdict(DIFFERENT, faults, [str(d) for d in found])
    return Verdict(REFUSED if words is not None else LOST if gone else EQUAL)


def needy() -> list[Cell]:
    """The cells of the lab: the sample of the scenes that need more than every kernel has, and of some others, for a kernel
    that is years older than this one."""
    return [cell for cell in sample() if SCENES[cell[0]].needs or cell[0] in _ELSEWHERE]


def every_needy() -> list[Cell]:
    """All cells of the scenes that need more than every kernel has."""
    return [cell for cell in every() if SCENES[cell[0]].needs]


def refusal(scene: Scene, plugin: str) -> tuple[str, ...] | None:
    """The words with which `plugin` is to refuse the device of `scene`; None: it is to attach it."""
    words = scene.refusal(plugin)
    if words is None and plugin == HOST_DEVICE and any(table.fate(s.row) == table.REFUSED for s in scene.has):
        return (scene.device,)
    return words
