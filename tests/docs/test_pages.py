"""Every command of the pages: those of a block are run in the order of the page, or the page says why not.

A block of shell lines stands behind a mark. `run: hand` runs it on a node of its own, in namespaces, with the real command and
plugins; with the word `findings` behind it, commands may end with 1, since they find something on such a node. `run: cluster`
runs it with the real kubectl and helm, in the cluster of tests/docs/cluster.py, between what tests/docs/scenes.py has of the text
around it. With `serves` a command is ended by SIGTERM after
some seconds. `run: build` is run as it stands, in a copy of the checkout, beside a registry. `not run: REASON` needs what no test has. Every line
that begins with railcni, of every page, is read by the command's own parser.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cni.cli.main import _parser
from cni.shared.spec.errors import InvalidConfig
from tests import tools
from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, PORT
from tests.docs import scenes
from tests.docs.scenes import Scene
from tests.node import ROOT, Node, until
from tests.sysfs import Tree

MODELS = ROOT / "conf/examples/README.md"
PAGES = (ROOT / "README.md", MODELS, *sorted((ROOT / "docs").glob("*.md")))
KINDS = ("hand", "cluster", "build", "demo")
QUICK = {  # the other pages are long
    "cluster": {"README"},
    "hand": {"getting-started", "install"},
}
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>run|not run): (?P<what>[^\n]*?) -->\n)?^(?P<indent> *)```sh\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
PLACES = {"NAMESPACE/POD": "default/pod-1", "FILE...": "FILE", "FILE....": "FILE"}
needs_kubectl = pytest.mark.skipif(
    "tools.kubectl_version() < (1, 31)", reason="needs kubectl 1.31 or newer: `.ci/helm` puts one into build/tools"
)
POD = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-1"
SERVER_LOG = "cluster.log"
OWN_FOLDERS = """for top in /opt /usr/local /etc/containerd; do [ ! -d $top ] || mount -t tmpfs none $top; done
mkdir -p /opt/cni/bin /usr/local/bin"""
BUILDERS = ("make ", "skopeo ")
MASTER_OF_PAGE = "ip link add ens2f0"


class Block(NamedTuple):
    mark: str
    what: str
    text: str


def stem(page: Path) -> str:
    """The page's name in tests/docs/scenes.py."""
    return "models" if page == MODELS else page.stem


def blocks(page: Path) -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text()):
        yield Block(found["mark"] or "", found["what"] or "", textwrap.dedent(found["text"]))


def runs(page: Path, kind: str) -> list[Block]:
    return [b for b in blocks(page) if b.mark == "run" and kind in b.what.split()]


def to_run(kind: str) -> list[Any]:
    """The pages with such blocks."""
    found = [page for page in PAGES if runs(page, kind)]
    return [
        pytest.param(p, id=stem(p), marks=() if stem(p) in QUICK.get(kind, ()) else pytest.mark.long) for p in found
    ]


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_each_block_of_commands_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert block.mark, f"no mark before:\n{block.text}"
        assert block.mark == "not run" or block.what.split()[0] in KINDS, block.what


PLUGINS = ("cni/link/plugins", "cni/link/features", "cni/shared", "cni/link/verbs", "ipam")
# What others than railcni say, by where it is said.
SAID_BY_OTHERS = {
    'failed to find plugin "railcni-macvlan"': "libcni, pkg/invoke/find.go",
    "exclusive": "the kernel's netns mode, as `rdma system` prints it",
}


def test_each_text_by_which_a_symptom_is_found_is_one_that_the_code_says() -> None:
    """A runtime's event has the message and the details of a plugin's error, and not its code."""
    tables = (ROOT / "docs/troubleshooting.md").read_text().split("\n\n")
    seen = 0
    for head, folders in (("| the message contains", PLUGINS), ("| doctor says", ("cni",))):
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        said = "\n".join(text for path in paths for text in templates(path))
        (table,) = (table for table in tables if table.startswith(head))
        for row in table.splitlines()[2:]:
            for text in set(re.findall("`([^`]*)`", row.split(" | ")[0])) - SAID_BY_OTHERS.keys():
                for piece in map(str.strip, text.split("…")):
                    value = re.sub(r'(?<=")[^" ]+(?=")|(?<=MTU )\d+', "\0", piece)
                    assert value in said or piece in said, f"no message has {piece!r}"
                    seen += 1
    assert seen > 12


@cache
def templates(path: Path) -> list[str]:
    """The texts in a file of code, each a line, with a zero byte for each value."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return [text.replace("\n", " ") for text in found]


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


@pytest.mark.parametrize("page", PAGES, ids=stem)
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
            except InvalidConfig as fault:
                assert "there is no such" in fault.msg, (words, fault)  # that is on the reader's machine


class Shell:
    """A node on which the lines of a page run, one block after the other."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        for name in ("bin", "conf", "docs", "cni", "build"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "state").mkdir()
        self._exports: list[str] = []
        self.seconds = 60
        self.environ = {
            "PATH": f"{ROOT}/bin:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "DOCS_ROOT": str(ROOT),
        }

    def log(self) -> str:
        """What the cluster has said, of which nothing is expected."""
        log = self.folder / SERVER_LOG
        return log.read_text()[-3000:] if log.exists() else ""

    def own_conf(self) -> None:
        """Let conf/ be a copy, in which the registry is written as the pages demand."""
        (self.folder / "conf").unlink()
        shutil.copytree(ROOT / "conf", self.folder / "conf")
        for path in (self.folder / "conf").rglob("kustomization.yaml"):
            path.write_text(path.read_text().replace("set-your-registry.invalid", "registry.example.com"))

    def run(self, text: str, *, findings: bool = False) -> str:
        if findings:
            text = "".join(f"{{ {line}\n}} || [ $? = 1 ]\n" for line in text.splitlines())
        exports = "".join(f"{line}\n" for line in self._exports)
        lines = ["timeout", str(self.seconds), "sh", "-ec", f"cd {self.folder}\n{exports}{text}"]
        done = self.node.run(lines, env=self.environ, timeout=self.seconds + 20)
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"{text}\n{said}\n{self.log()}"
        assert "Traceback" not in said
        self._exports += re.findall(r"^export .*$", text, re.M)
        return said


@pytest.fixture
def shell(node: Node, tmp_path: Path) -> Shell:
    return Shell(node, tmp_path)


@pytest.mark.parametrize("page", to_run("hand"))
def test_what_a_page_does_by_hand_works_in_its_order(page: Path, shell: Shell) -> None:
    lines = "".join(block.text for block in runs(page, "hand"))
    if not tools.find("ip") and any(re.search(r"\bip ", b.text) or "pod" in b.what.split() for b in runs(page, "hand")):
        pytest.skip("needs ip: apt-get install iproute2")
    if MASTER_OF_PAGE not in lines:
        shell.node.master()
    if "whereabouts.d" not in lines:
        flat = shell.node.path(DIRECTORY)
        flat.mkdir(parents=True)
        (flat / "whereabouts.conf").write_text('{"datastore": "file"}')
    if stem(page) in scenes.RDMA:
        lay_verbs_devices(shell)
    if any("install" in block.what.split() for block in runs(page, "hand")):
        shell.run(OWN_FOLDERS)
        shell.environ["PATH"] = f"/usr/local/bin:{shell.environ['PATH']}"
    for block in runs(page, "hand"):
        if "pod" in block.what.split():
            shell.run(f"ip netns add pod1; CNI_ARGS='{POD}' bin/railcni attach conf/nad/rdma-net-ipam.yaml pod1")
        said = played(shell, scenes.of(stem(page), block.text), block)
        if "attach " in block.text:
            assert "192.168.111.1/24" in said, said


@needs_kubectl
@pytest.mark.parametrize("page", to_run("cluster"))
def test_what_a_page_does_in_a_cluster_works_in_its_order(page: Path, shell: Shell) -> None:
    todo = list(runs(page, "cluster"))
    if not tools.find("helm") and any("helm " in block.text for block in todo):
        pytest.skip("needs helm: `.ci/helm` puts it into build/tools")
    if not shutil.which("etcd") and any("etcd" in block.what for block in todo):
        pytest.skip("needs etcd: install etcd-server and etcd-client")
    if not shutil.which("busybox"):
        pytest.skip("needs busybox, in which the commands of its image run: apt-get install busybox-static")
    with cluster(shell, has_rdma=stem(page) in scenes.RDMA):
        shell.run(scenes.FIRST.get(stem(page), ""))
        for block in todo:
            played(shell, scenes.of(stem(page), block.text), block)


def played(shell: Shell, scene: Scene, block: Block) -> str:
    """Run a block between what the text around it tells the reader to do; what it says. Images are left to the test that builds."""
    shell.run(scene.before)
    text = block.text
    if "cluster" in block.what.split():
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(BUILDERS))
    for placeholder, name in scene.names.items():
        assert placeholder in text
        text = text.replace(placeholder, name)
    if "serves" in block.what.split():
        text = f"timeout --preserve-status 3 {text}"
    said = shell.run(text, findings="findings" in block.what.split())
    assert re.search(scene.said, said), said
    shell.run(scene.after)
    return said


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", to_run("build"))
def test_what_a_page_builds_is_built_in_its_order(page: Path, shell: Shell, tmp_path: Path) -> None:
    for block in runs(page, "build"):
        if "man " in block.text and not shutil.which("man"):
            pytest.skip("needs man: apt-get install man-db")
        if "skopeo" in block.text and not (shutil.which("skopeo") and Path("/etc/containers").is_dir()):
            pytest.skip("needs skopeo: apt-get install skopeo")
    shell.folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("build", ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, shell.folder, symlinks=True, ignore=ignored)
    (shell.folder / ".venv").symlink_to(ROOT / ".venv")
    shell.run(OWN_FOLDERS)
    shell.seconds = 900
    with registry(shell):
        shell.run(scenes.FIRST_TO_BUILD)
        for block in runs(page, "build"):
            text = block.text
            if "cluster" in block.what.split():
                text = "".join(line for line in text.splitlines(keepends=True) if line.startswith(BUILDERS))
            if "bash" in block.what.split():
                text = f"bash -ec '\n{text}complete -p railcni'"
            if "network" in block.what.split():
                on_this_machine(shell, text)
            elif "containerd" in block.what.split():
                beside_containerd(shell, text)
            else:
                scene = Scene() if "cluster" in block.what.split() else scenes.of(stem(page), block.text)
                played(shell, scene, block._replace(text=text, what="build"))


def on_this_machine(shell: Shell, text: str) -> None:
    """Run lines where there is the network that pip uses."""
    environ = {**os.environ, "PATH": shell.environ["PATH"]}
    done = subprocess.run(["sh", "-ec", text], cwd=shell.folder, env=environ, capture_output=True, text=True)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("needs an index of Python packages")
    assert done.returncode == 0, done.stderr


def beside_containerd(shell: Shell, text: str) -> None:
    """Run lines on a node with a containerd; then it has railcni's image, by the name that docs/air-gapped.md tells."""
    from tests.containerd import runtime

    why = runtime.missing()
    if why:
        pytest.skip(why)
    with runtime.Runtime(
        shell.node, {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}
    ) as machine:
        for lines in (text, "ctr -n k8s.io images ls -q | grep -x localhost/railcni:0.1.0"):
            done = machine.enter(["sh", "-ec", f"cd {shell.folder}\n{lines}"])
            assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def registry(shell: Shell) -> Iterator[None]:
    """registry.example.com, in the node of `shell`."""
    top = shell.folder.parent
    (top / "hosts").write_text("127.0.0.1 localhost registry.example.com\n")
    (top / "containers").mkdir()
    (top / "containers/registries.conf").write_text(
        '[[registry]]\nlocation = "registry.example.com"\ninsecure = true\n'
    )
    (top / "containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    shell.run(
        f"mount --bind {top}/hosts /etc/hosts; [ ! -d /etc/containers ] || mount --bind {top}/containers /etc/containers"
    )
    program = [sys.executable, "-m", "tests.docs.registry", f"{top}/registry"]
    server = shell.node.start(program, env={"PYTHONPATH": str(ROOT)})
    try:
        assert until((top / "registry").exists, 20)
        yield
    finally:
        server.terminate()
        server.wait(20)


@contextlib.contextmanager
def cluster(shell: Shell, *, has_rdma: bool) -> Iterator[None]:
    """The node of `shell` is that of a cluster: tests/docs/cluster.py."""
    shell.own_conf()
    shell.node.master()
    for rail in range(8):
        shell.node.master(f"eth_r{rail}")
    shell.run(OWN_FOLDERS)
    if has_rdma:
        lay_verbs_devices(shell)
    (shell.folder / "admin.kubeconfig").write_text(KUBECONFIG.replace(', "namespace": "kube-system"', ""))
    for name in filter(tools.find, ("kubectl", "helm")):
        (shell.folder / "state" / name).symlink_to(tools.find(name))
    shell.environ |= {
        "PATH": f"{shell.folder}/state:{shell.environ['PATH']}", "KUBECONFIG": f"{shell.folder}/admin.kubeconfig",
        "HOME": str(shell.folder), "COLUMNS": "160",
    }  # fmt: skip
    program = [sys.executable, "-m", "tests.docs.cluster", str(PORT), f"{shell.folder}/state"]
    argv = ["sh", "-c", 'exec "$@" >"$0" 2>&1', f"{shell.folder}/{SERVER_LOG}", *program]
    server = shell.node.start(argv, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)})
    try:
        assert until(lambda: "node-1" in shell.run("kubectl get nodes || :"), 20)
        yield
    finally:
        server.terminate()
        server.wait(20)


def lay_verbs_devices(shell: Shell) -> None:
    """Lay over /sys a tree in which ens2f0 and the rails are NICs with a verbs device each, whose GID tables have the addresses
    that pods will get."""
    tree = Tree(shell.folder / "sys")
    for number, netdev in enumerate(
        ("eth_r0", "eth_r1", "eth_r2", "eth_r3", "eth_r4", "eth_r5", "eth_r6", "eth_r7", "ens2f0")
    ):
        pci = f"0000:{number + 16:x}:00.0"
        tree.netdev(netdev, pci=pci)
        tree.verbs(f"mlx5_{number}", pci=pci, netdev=netdev)
        subnet, link = ("192.168.111", "net1") if netdev == "ens2f0" else (f"192.168.{number}", f"rail{number}")
        for host in range(1, 6):
            tree.gid(f"mlx5_{number}", f"{subnet}.{host}", ndev=link)
    shell.run(f"mount --bind {tree} /sys")


def test_the_figures_of_the_landing_page_are_those_of_the_code_and_of_the_measured_table() -> None:
    from cni.cli.doctor.report import CHECKS, POD_CHECKS

    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"makes {len(CHECKS)} checks of a node and {len(POD_CHECKS)} of a pod" in text
    measured = (ROOT / "docs/performance.md").read_text()
    (add,) = re.findall(r"\| macvlan, address from a pool: ADD \|(.*)\|", measured)
    cells = [cell.strip() for cell in add.split("|")]
    assert f"takes {cells[2]} of the Go plugins' time and {cells[5]} of their processor time" in text
    packages = (ROOT / "requirements-command.txt").read_text().count("==")
    assert f"installs {packages} Python packages" in text


def test_the_page_of_rdma_has_a_row_for_each_check_of_doctor() -> None:
    from cni.cli.doctor.report import CHECKS, POD_CHECKS

    tables = re.findall(r"\| check \|.*\n((?:\|.*\n)+)", (ROOT / "docs/rdma.md").read_text())
    of_node, of_pod = (re.findall("`([^`]+)`", " ".join(re.findall(r"(?m)^\|([^|]+)", rows))) for rows in tables)
    assert set(of_node) == {check.name for check in CHECKS}
    skipped = {"node"}  # it lists what is not looked at
    assert set(of_pod) == {check.name for check in POD_CHECKS if not check.of_pod} - skipped


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
