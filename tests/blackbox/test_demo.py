"""railcni demo, as `make demo` runs it: what it shows, as whom it runs, and that it fails when something is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.node import ROOT, unusable
from tests.tools import needs, needs_compiler
from tests.users import AnotherUser
from tests.view import View

WHY_NOT = unusable()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


class Checkout:
    """A copy of the project whose executables run with this test's interpreter, and which anybody may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); from cni.cli.main import main; sys.exit(main())"
        self.command = [sys.executable, "-IPB", "-c", code, "demo"]

    def demo(self, *before: str) -> subprocess.CompletedProcess[str]:
        """Run the demo, by way of the command `before`, in an empty environment."""
        done = subprocess.run([*before, *self.command], cwd="/", capture_output=True, text=True, env={}, timeout=100)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A checkout in which all is made and compiled."""
    with tempfile.TemporaryDirectory(prefix="made-", dir="/tmp") as place:
        folder = Path(place, "checkout")
        for name in ("cni", "ipam", "conf"):
            shutil.copytree(ROOT / name, folder / name)
        (folder / "bin").mkdir()
        for name in ("Makefile", "bin/launcher.in", "bin/shell.in"):
            shutil.copy(ROOT / name, folder / name)
        made = [
            ["make", "-s", f"PYTHON={sys.executable}", "plugins"],
            [sys.executable, "-m", "compileall", "-q", "cni", "ipam"],
        ]
        for command in made:
            done = subprocess.run(command, cwd=folder, capture_output=True)
            assert done.returncode == 0, done.stderr
        yield folder


@pytest.fixture
def checkout(made: Path) -> Iterator[Checkout]:
    with tempfile.TemporaryDirectory(prefix="checkout-", dir="/tmp") as folder:
        shutil.copytree(made, folder, dirs_exist_ok=True, symlinks=True)
        Path(folder).chmod(0o755)
        yield Checkout(Path(folder))


def state() -> tuple[object, ...]:
    """What of this machine a demo must not change."""
    host = View("/proc/self/ns/net")
    places = (Path("/etc/cni"), Path("/run/netns"), Path("/var/lib/cni"))
    files = {str(p): sorted(filter(_is_no_other_tests, os.listdir(p))) if p.is_dir() else None for p in places}
    return host.names(), files, [n for n in os.listdir("/tmp") if n.startswith("railcni-private-")], len(mounts())


def _is_no_other_tests(name: str) -> bool:
    """False for the namespaces of the pods of `railcni test`, whose tests may run beside this one."""
    return not name.startswith("railcni-test-")


def mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def assert_complete(output: str) -> None:
    """The report shows all that a person would check."""
    checks = [line.split()[:2] for line in output.splitlines()[1:]]
    order = ["node", "attached", "attached", "link", "link", "leases", "ping", "ping", "detached"]
    assert checks == [[check, "PASS"] for check in order], output
    for number in (1, 2):
        link = f"net1 of rdma-pod-{number}: state: UP; MTU: 9000; inet: 192.168.111.{number}/24 brd 192.168.111.255; "
        assert f"{link}on a link of: the node; MAC: locally administered" in output
    assert [int(n) for n in re.findall(r"192\.168\.111\.2 from 192\.168\.111\.1: (\d+) bytes came back", output)] == [
        84,
        9000,
    ]
    assert "leases: 192.168.111.1 default/rdma-pod-1, 192.168.111.2 default/rdma-pod-2" in output
    assert "links of rdma-pod-1: none" in output.splitlines()[-1]


def test_the_demo_shows_two_pods_and_leaves_the_machine_as_it_was(checkout: Checkout) -> None:
    before = state()
    done = checkout.demo()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert_complete(done.stdout)
    assert "\x1b" not in done.stdout
    assert state() == before


@needs_compiler
@needs("script", "install bsdutils")
def test_the_report_is_coloured_on_a_terminal_and_plugins_get_the_cni_variables_and_nothing_else(
    checkout: Checkout,
) -> None:
    plugin = checkout.folder / "libexec/macvlan"
    plugin.rename(plugin.with_name("ours"))
    plugin.write_text(f'#!/bin/sh\nenv >> {checkout.folder}/env\nexec "{plugin.with_name("ours")}"\n')
    plugin.chmod(0o755)
    command = " ".join([*checkout.command[:-2], f'"{checkout.command[-2]}"', "demo"])
    env = {"TERM": "xterm", "PATH": os.environ["PATH"], "SECRET": "1", "NODENAME": "n"}
    argv = ["script", "-eqc", command, "/dev/null"]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout
    assert "\x1b[32mPASS" in done.stdout
    names = {line.partition("=")[0] for line in (checkout.folder / "env").read_text().splitlines()}
    assert {n for n in names if not n.startswith("CNI_")} <= {"PWD"}  # which sh adds


def test_the_demo_needs_no_root(checkout: Checkout, another_user: AnotherUser) -> None:
    nobody = [*another_user.prefix, "--no-new-privs", "--"]
    if subprocess.run([*nobody, sys.executable, "-c", "import rich"], capture_output=True, cwd="/").returncode:
        pytest.skip(f"an unprivileged user cannot run or read {sys.prefix}: clone to where all can, not below /root")
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    if subprocess.run([*nobody, *unshare], capture_output=True).returncode:
        pytest.skip(
            "this kernel gives unprivileged users no user namespaces: sysctl user.max_user_namespaces and others"
        )
    before = state()
    done = checkout.demo(*nobody)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert_complete(done.stdout)
    assert "in a user namespace of its own, without root: ens2f0" in done.stdout
    assert state() == before


def test_the_demo_says_what_is_missing_where_it_gets_no_namespaces(checkout: Checkout) -> None:
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    done = checkout.demo(*powerless)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "railcni: no private namespaces can be had here: unshare: Operation not permitted; run it"
    )
    assert state()[2] == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        pytest.param({"mtu": 1500}, "net1 of rdma-pod-1: MTU: 1500, and 9000 is wanted", marks=pytest.mark.long),
        pytest.param({"master": "ens9"}, "a step failed: code 7: ", marks=pytest.mark.long),
        ({"ipam": {"type": "whereabouts", "range": "192.168.111.0/25"}}, "rdma-pod-1: addresses: ['192.168.111.1/25'], and ['192.168.111.1/24'] is wanted"),
    ],
)  # fmt: skip
def test_the_demo_fails_when_the_outcome_is_not_as_it_must_be(
    checkout: Checkout, changed: dict[str, object], complaint: str
) -> None:
    nad = checkout.folder / "conf/nad/rdma-net-ipam.yaml"
    head, _, config = nad.read_text().partition("config: |\n")
    nad.write_text(f"{head}config: '{json.dumps({**json.loads(config), **changed})}'\n")
    done = checkout.demo()
    assert done.returncode == 1
    assert f"  FAIL    {complaint}" in done.stdout


def made_by(target: str, folder: Path) -> str:
    """What make would do for `target` in a clone where nothing is made."""
    for name in ("cni", "ipam", ".ci"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bin").mkdir()
    for file in (ROOT / "Makefile", *ROOT.glob("bin/*.in"), *ROOT.glob("requirements*.txt")):
        shutil.copy(file, folder / file.relative_to(ROOT))
    command = ["make", "--no-print-directory", "-n", target]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_demo_is_that_command_and_installs_no_more_than_the_command_needs(tmp_path: Path) -> None:
    said = made_by("demo", tmp_path).splitlines()
    assert said[-1] == "bin/railcni demo"
    assert any("bin/kubectl-railcni" in line for line in said), "the next pages call it"
    assert [line.split()[3] for line in said if ".ci/venv" in line] == ["requirements-command.txt"]
    assert [line.split()[3] for line in made_by("all", tmp_path / "all").splitlines() if ".ci/venv" in line] == [
        "requirements-command.txt",
        "requirements.txt",
    ]


def pins(file: Path) -> dict[str, list[str]]:
    """The hashes of each package that a file of requirements names."""
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if pinned := re.match(r"(\w\S*)==\S+ \\$", line):
            hashes = found.setdefault(pinned[1], [])
        elif fits := re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line):
            hashes.append(fits[1])
        else:
            assert line.startswith(("#", "-r ")), line
    return found


@pytest.mark.parametrize("file", sorted(ROOT.glob("requirements*.txt")), ids=lambda file: file.name)
def test_each_package_is_known_by_its_hashes(file: Path) -> None:
    assert all(pins(file).values())


def test_what_the_command_needs_is_what_its_requirements_name() -> None:
    from cni.dist.bundle import distributions

    named = {canonicalize_name(name) for name in pins(ROOT / "requirements-command.txt")}
    assert named == {canonicalize_name(one.name) for one in distributions(extra="device-plugin")}


def venv(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Have .ci/venv install what requirements-command.txt names, with these variables."""
    former = ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX")
    whole = {k: v for k, v in os.environ.items() if k not in former} | {"PIP_CONFIG_FILE": os.devnull, **environ}
    command = ["sh", ".ci/venv", os.path.realpath(sys.executable), "requirements-command.txt"]
    return subprocess.run(command, cwd=folder, env={**whole, "UV_OFFLINE": "1"}, capture_output=True, text=True)


@pytest.mark.long
def test_without_a_network_the_way_to_packages_is_told_and_nothing_half_made_stays(tmp_path: Path) -> None:
    made_by("demo", tmp_path)
    nowhere = "http://127.0.0.1:1/simple"
    done = venv(tmp_path, PIP_INDEX_URL=nowhere, UV_INDEX_URL=nowhere)
    assert done.returncode == 1, done.stderr
    assert "Python packages, by requirements-command.txt" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("they cannot be had: is there a network")
    assert not (tmp_path / ".venv").exists()


def installed(folder: Path, wheels: Path, requirement: str) -> subprocess.CompletedProcess[str]:
    """Have .ci/venv install `requirement` of `wheels`, in a clone where nothing is made."""
    made_by("demo", folder)
    (folder / "requirements-command.txt").write_text(requirement)
    return venv(folder, PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1", UV_FIND_LINKS=str(wheels))


@pytest.mark.long
def test_no_build_script_of_what_the_command_needs_is_run(tmp_path: Path) -> None:
    source, ran, wheels = tmp_path / "source-1.0", tmp_path / "ran", tmp_path / "wheels"
    source.mkdir()
    wheels.mkdir()
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(build)
    (source / "backend.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: source\nVersion: 1.0\n")
    file = Path(shutil.make_archive(str(wheels / "source-1.0"), "gztar", tmp_path, "source-1.0"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    done = installed(tmp_path / "clone", wheels, f"source==1.0 --hash=sha256:{digest}\n")
    assert (done.returncode, ran.exists()) == (1, False), done.stderr
    assert "source==1.0" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("what", ["whole", "changed", "without a hash"])
def test_a_wheel_with_another_hash_or_without_one_is_not_installed(tmp_path: Path, what: str) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "harmless-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("harmless.py", "")
        wheel.writestr("harmless-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: harmless\nVersion: 1.0\n")
        wheel.writestr("harmless-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("harmless-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256((wheels / "harmless-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    if what == "changed":
        digest = hashlib.sha256(b"what was published").hexdigest()
    given = "" if what == "without a hash" else f" --hash=sha256:{digest}"
    done = installed(tmp_path / "clone", wheels, f"harmless==1.0{given}\n")
    assert (done.returncode == 0) == (what == "whole"), done.stderr
    assert what == "whole" or "hash" in done.stderr.lower()
