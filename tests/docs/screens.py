"""The pictures of screens in docs/screens: what commands really print, drawn by rich at two widths, light and dark.

`python -m tests.docs.screens` draws them again, as root. `doctor` shows a
node of the lab, as its sysfs was recorded, with one fault; the other commands show that of tests/cli/test_doctor_pod.py.
"""

import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme

from cni.cli import rdma
from cni.cli.doctor import command as doctor
from cni.cli.doctor import report, setup
from cni.cli.doctor.facts import NodeFacts
from cni.cli.doctor.finding import Observation
from cni.cli.main import main
from cni.cli.terminal import output
from cni.node.inventory import devices as inventory
from cni.node.inventory import sandboxes
from tests import recorded
from tests.cli.test_doctor_pod import Scene, in_container
from tests.namespaces import new_net
from tests.view import View

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/screens"
WIDTHS = (80, 120)
LIGHT = TerminalTheme(
    (255, 255, 255), (36, 41, 47),
    [(36, 41, 47), (207, 34, 46), (17, 99, 41), (149, 97, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)],
)  # fmt: skip
THEMES = {"light": LIGHT, "dark": DIMMED_MONOKAI}
NAD = """apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: rdma-net}
spec:
  config: |
    {"cniVersion": "1.0.0", "type": "macvlan", "master": "ens2f0", "mode": "bridges", "mut": 9000,
     "ipam": {"type": "whereabouts", "range": "192.168.111.0/33"}}
"""


@contextmanager
def _scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(1) as leaving:  # so that this thread stays where it is
            fds = [leaving.submit(new_net).result() for _ in range(2)]
        try:
            yield Scene(Path(folder), *(View(f"/proc/{os.getpid()}/fd/{fd}") for fd in fds))
        finally:
            for fd in fds:
                os.close(fd)


def _doctor(scene: Scene) -> None:
    shutil.rmtree(scene.sys.root)
    recorded.lay("lab-roce", scene.sys.root)
    scene.put("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")  # which the record lacks
    for node in ("class/infiniband_verbs/uverbs0", "class/misc/rdma_cm"):
        scene.put(f"{node}/dev", "1:3")  # the nodes of the scene are those of /dev/null
    offered = {"Data": {"RegisteredDevices": {"rdma/hca_a": ["mlx5_0-0"]}}}
    (scene.folder / "kubelet/device-plugins/kubelet_internal_checkpoint").write_text(json.dumps(offered))
    for node in ("uverbs0", "uverbs1"):
        (scene.devices / node).unlink()
    usual = mock.patch.multiple(setup, memlock_of=lambda _: -1, may_lock=lambda _: False, user_of=lambda _: 0)
    with usual, in_container(scene), scene.host.entered():
        found = report.examine(NodeFacts(scene.places(), "default/pod-1"))
        named = [_as_on_a_node(scene, finding) for finding in found.findings]
        doctor._print(replace(found, findings=named), verbose=False)


def _as_on_a_node(scene: Scene, finding: Observation) -> Observation:
    """Without the folder in which the tree lies, and the number of the process."""
    subject = re.sub(r"process \d+", "process 4711", finding.subject.replace(str(scene.folder), ""))
    return replace(finding, subject=subject)


def _rdma(scene: Scene) -> None:
    with scene.host.entered():
        found = sandboxes.read(str(scene.folder / "state"), str(scene.folder / "cache"), [])
        rdma._print(inventory.read(found, str(scene.sys)))


def _lint(scene: Scene) -> None:
    path = scene.folder / "nad.yaml"
    path.write_text(NAD)
    there = os.getcwd()
    os.chdir(scene.folder)
    try:
        with mock.patch.object(sys, "argv", ["railcni", "nad", "lint", "nad.yaml"]):
            main()
    finally:
        os.chdir(there)


SCREENS: dict[str, tuple[str, Callable[[Scene], None]]] = {
    "doctor": ("railcni doctor --pod default/pod-1", _doctor),
    "rdma": ("railcni rdma", _rdma),
    "lint": ("railcni nad lint nad.yaml", _lint),
}


def screens() -> Iterator[tuple[str, int, Console]]:
    """Each screen's name, its width, and what it shows."""
    for name, (line, act) in SCREENS.items():
        for width in WIDTHS:
            console = Console(
                record=True, force_terminal=True, width=width, file=io.StringIO(), color_system="truecolor", markup=False,
                highlight=False, emoji=False, legacy_windows=False,
            )  # fmt: skip
            with _scene() as scene, mock.patch.object(output, "console", lambda _=None, console=console: console):
                console.print(f"$ {line}")
                act(scene)
            yield name, width, console


def shown(console: Console) -> str:
    """The text of a screen, without what differs from run to run."""
    return "".join(f"{line.rstrip()}\n" for line in console.export_text(clear=False).splitlines())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, width, console in screens():
        (FOLDER / f"{name}-{width}.txt").write_text(shown(console))
        for theme, colours in THEMES.items():
            drawn = console.export_svg(title="railcni", theme=colours, clear=False, unique_id=f"{name}{width}{theme}")
            (FOLDER / f"{name}-{width}-{theme}.svg").write_text(drawn)
