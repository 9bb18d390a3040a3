"""Every command of the pages: those of a block are run in the order of the page, or the page says why not.

A block of shell lines stands behind a mark. `run: hand` runs it on a node of its own, in namespaces, with the real command and
plugins; with the word `findings` behind it, commands may end with 1, since they find something on such a node. `run: cluster` runs it there beside an API server, with stand-ins for kubectl and skopeo in tests/docs/bin: theirs is what
a cluster would do, a pod's ADD, and the real kubectl renders kustomizations. `not run: REASON` needs what no test has. Every line
that begins with railcni, of every page, is read by the command's own parser.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cni.cli.main import _parser
from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, Server
from tests.node import ROOT, Node

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARKED = {"README", "air-gapped", "concepts", "examples", "faq", "getting-started", "install", "migration", "networks", "performance",
          "rails", "rdma", "reference", "security", "troubleshooting"}  # fmt: skip
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>run|not run): (?P<what>[^\n]*?) -->\n)?^(?P<indent> *)```sh\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
PLACES = {"NAMESPACE/POD": "default/pod-1", "FILE...": "FILE", "FILE....": "FILE"}
MASTER_OF_PAGE = "ip link add ens2f0"


class Block(NamedTuple):
    mark: str
    what: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text()):
        yield Block(found["mark"] or "", found["what"] or "", textwrap.dedent(found["text"]))


def to_run(kind: str) -> list[Path]:
    return [page for page in PAGES if any(b.mark == "run" and b.what.split()[0] == kind for b in blocks(page))]


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem in MARKED], ids=lambda page: page.name)
def test_each_block_of_commands_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert block.mark, f"no mark before:\n{block.text}"
        assert block.mark == "not run" or block.what.split()[0] in ("hand", "cluster", "demo"), block.what


def commands(text: str) -> Iterator[list[str]]:
    """The calls of railcni in shell lines, without placeholders' brackets and what stands behind them."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||\||;", line.partition("   #")[0].partition("  #")[0]):
            with contextlib.suppress(ValueError):
                words = shlex.split(part.partition(" > ")[0], comments=True)
                at = next(
                    (i for i, word in enumerate(words) if word == "railcni" or word.endswith("/bin/railcni")), None
                )
                if at is not None and words[at + 1 :] and (at == 0 or "/" in words[at]):
                    yield words[at + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_command_line_of_every_call_is_one(page: Path) -> None:
    for block in blocks(page):
        for words in commands(block.text):
            said = io.StringIO()
            given = [PLACES.get(word, word) for word in words]
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                    _parser(given[:1]).parse_args(given)
            except SystemExit as end:
                assert end.code == 0, (words, said.getvalue())


class Shell:
    """A node on which the lines of a page run, one block after the other."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        for name in ("bin", "conf", "docs", "cni", "build"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "state").mkdir()
        self._exports: list[str] = []
        self.environ = {
            "PATH": f"{ROOT}/tests/docs/bin:{ROOT}/bin:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "DOCS_ROOT": str(ROOT),
            "DOCS_STATE": str(folder / "state"),
            "DOCS_KUBECTL": shutil.which("kubectl") or "",
        }

    def run(self, text: str, *, findings: bool = False) -> str:
        if findings:
            text = "".join(f"{{ {line}\n}} || [ $? = 1 ]\n" for line in text.splitlines())
        exports = "".join(f"{line}\n" for line in self._exports)
        done = self.node.run(["sh", "-ec", f"cd {self.folder}\n{exports}{text}"], env=self.environ, timeout=100)
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"{text}\n{said}"
        assert "Traceback" not in said
        self._exports += re.findall(r"^export .*$", text, re.M)
        return said


@pytest.fixture
def shell(node: Node, tmp_path: Path) -> Shell:
    return Shell(node, tmp_path)


def runs(page: Path, kind: str) -> Iterator[Block]:
    return (b for b in blocks(page) if b.mark == "run" and b.what.split()[0] == kind)


@pytest.mark.parametrize("page", to_run("hand"), ids=lambda page: page.name)
def test_what_a_page_does_by_hand_works_in_its_order(page: Path, shell: Shell) -> None:
    lines = "".join(block.text for block in runs(page, "hand"))
    if MASTER_OF_PAGE not in lines:
        shell.node.master()
    if "whereabouts.d" not in lines:
        flat = shell.node.path(DIRECTORY)
        flat.mkdir(parents=True)
        (flat / "whereabouts.conf").write_text('{"datastore": "file"}')
    if any("install" in block.what.split() for block in runs(page, "hand")):
        shell.run("mount -t tmpfs none /opt; mount -t tmpfs none /usr/local; mkdir -p /opt/cni/bin /usr/local/bin")
        shell.environ["PATH"] = f"/usr/local/bin:{shell.environ['PATH']}"
    for block in runs(page, "hand"):
        if "pod" in block.what.split():
            shell.run("ip netns add pod1; bin/railcni attach conf/nad/rdma-net-ipam.yaml pod1")
        said = shell.run(block.text, findings="findings" in block.what.split())
        if "attach " in block.text:
            assert "192.168.111.1/24" in said, said
        if "ipam migrate" in block.text:
            assert "192.168.111.9" in said, said


@pytest.mark.parametrize("page", to_run("cluster"), ids=lambda page: page.name)
def test_what_a_page_does_in_a_cluster_works_in_its_order(page: Path, shell: Shell) -> None:
    if not shutil.which("ping") and not shutil.which("busybox"):
        pytest.skip("needs ping: install iputils-ping or busybox")
    node = shell.node
    node.master()
    for rail in range(8):
        node.master(f"eth_r{rail}")
    directory = node.path(DIRECTORY)
    directory.mkdir(parents=True)
    (directory / "whereabouts.kubeconfig").write_text(KUBECONFIG)
    (shell.folder / "admin.kubeconfig").write_text(KUBECONFIG)
    flat = {"datastore": "addresslease", "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"}}
    (directory / "whereabouts.conf").write_text(json.dumps(flat))
    server = Server(node)
    try:
        if "hello-rdma" not in "".join(block.text for block in runs(page, "cluster") if "apply" in block.text):
            shell.run("kubectl apply -f conf/examples/hello-rdma.yaml")
        for block in runs(page, "cluster"):
            said = shell.run(block.text)
            if "ip -brief address show net1" in block.text:
                assert re.search(r"^net1@if\d+ +UP +192\.168\.111\.1/24 ", said, re.M), said
            if "ipam show" in block.text or "ipam leases" in block.text:
                assert re.search(r"192\.168\.111\.\d+\s.*default/(hello-rdma-1|bw-server)\b", said, re.S), said
    finally:
        server.process.kill()
        server.process.wait()


def test_the_figures_of_the_landing_page_are_those_of_the_code_and_of_the_measured_table() -> None:
    from cni.cli.doctor.table import CHECKS, POD_CHECKS

    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"makes {len(CHECKS)} checks of a node and {len(POD_CHECKS)} of a pod" in text
    measured = (ROOT / "docs/performance.md").read_text()
    (add,) = re.findall(r"\| macvlan, address from a pool: ADD \|(.*)\|", measured)
    cells = [cell.strip() for cell in add.split("|")]
    assert f"takes {cells[2]} of the Go plugins' time and {cells[5]} of their processor time" in text
    packages = (ROOT / "requirements-command.txt").read_text().count("==")
    assert f"installs {packages} Python packages" in text


def test_the_landing_page_fits_160_lines_and_shows_what_the_example_has() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 160
    example = (ROOT / "conf/examples/hello-rdma.yaml").read_text()
    for word in (
        "railcni-macvlan",
        '"master": "ens2f0"',
        '"mtu": 9000',
        '"range": "192.168.111.0/24"',
        "name: hello-rdma",
    ):
        assert word in text and word in example
