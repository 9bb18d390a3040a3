"""The bundle that `make bundle` makes: the same bytes each time, whole, and at home on hosts of other kinds, where the
black-box tests pass as they do from the checkout.

RAILCNI_OTHER_ROOT names the root of another distribution, to run them there, too; RAILCNI_SUITE some of their files, to
be done sooner.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests import bundles
from tests.node import CHROOT, IS_BUNDLE, ROOT, unusable

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(bundles.missing()), reason=bundles.missing()),
    pytest.mark.skipif(IS_BUNDLE, reason="runs the tests of which it would be one"),
]
NOT_OF_PLUGINS = {f"test_{name}.py" for name in ("bundle", "image", "launcher", "install", "upgrade")}
WHOLE = sorted(
    f"tests/blackbox/{path.name}"
    for path in (ROOT / "tests/blackbox").glob("test_*.py")
    if path.name not in NOT_OF_PLUGINS
)
SUITE = os.environ.get("RAILCNI_SUITE", "").split() or WHOLE
OTHER = os.environ.get("RAILCNI_OTHER_ROOT", "")


@pytest.fixture(scope="module")
def bundle() -> Path:
    return bundles.bundle()


@pytest.fixture
def empty_root(bundle: Path) -> Iterator[Path]:
    """A root that holds the bundle, as a plugin folder may hold it, and not one file more; no /proc either."""
    if os.geteuid() != 0:
        pytest.skip("needs root for chroot: run the tests with sudo")
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder, "opt/cni/bin/railcni-bundle/1")
        shutil.copytree(bundle, version, symlinks=True)
        (version.parent / "current").symlink_to("1")
        (version.parents[1] / "railcni-macvlan").symlink_to("railcni-bundle/current/bin/macvlan")
        yield Path(folder)


@pytest.mark.timeout(300)
def test_another_directory_another_time_and_another_hash_seed_give_the_same_bytes(bundle: Path) -> None:
    copy = bundles.copy_of_the_checkout()
    try:
        second = bundles.build(copy, Path("out"), environ={"PYTHONHASHSEED": "7", "HOME": "/nowhere"})
        digests = [hashlib.sha256(Path(f"{b}.tar.gz").read_bytes()).hexdigest() for b in (bundle, second)]
        differing = subprocess.run(["diff", "-rq", bundle, second], capture_output=True, text=True).stdout
    finally:
        shutil.rmtree(copy.parent)
    assert digests[0] == digests[1], differing


def test_it_is_below_its_size_and_its_bill_names_its_packages(bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 70_000_000
    document = json.loads((bundle / "bill-of-materials.spdx.json").read_bytes())
    named = {package["name"] for package in document["packages"]}
    (site,) = bundle.glob("lib/python*/site-packages")
    installed = {dist.name for dist in distributions(path=[str(site)])}
    assert {"pydantic", "PyYAML"} <= installed
    assert installed | {path.name for path in (bundle / "licenses").iterdir()} | {"railcni"} <= named
    if shutil.which("dpkg-query"):
        assert any(name.startswith("libssl") for name in named)
    assert "OpenSSL 3" in document["comment"]


def test_nothing_in_it_tells_where_it_was_built(bundle: Path) -> None:
    telling = [p for p in bundle.rglob("*") if p.is_file() and str(ROOT).encode() in p.read_bytes()]
    assert telling == []


def test_it_runs_in_a_root_without_any_other_file(empty_root: Path) -> None:
    def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["chroot", empty_root, *argv], env=environ, capture_output=True, text=True)

    version = run("/opt/cni/bin/railcni-macvlan", CNI_COMMAND="VERSION", PATH="/usr/sbin:/usr/bin")
    assert json.loads(version.stdout)["cniVersion"] == "1.1.0"
    command = "/opt/cni/bin/railcni-bundle/current/bin/railcni"
    assert "attach" in run(command, "--help", PATH="/usr/sbin:/usr/bin").stdout
    python = "/opt/cni/bin/railcni-bundle/current/bin/python3"
    modules = "import ssl, sqlite3, ctypes, http.client, zlib, bz2, lzma, decimal, uuid, sys; print(sys.executable)"
    assert run(python, "-c", modules, PATH="/usr/sbin:/usr/bin").stdout == (
        "/opt/cni/bin/railcni-bundle/1/bin/python3\n"
    )


def test_what_it_has_installed_removes_itself(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "opt/cni/bin").mkdir(parents=True)
    where = [f"--root={tmp_path}", "--plugin-dir=/opt/cni/bin"]
    subprocess.run([bundle / "bin/railcni", "install", *where], env={}, check=True, capture_output=True)
    installed = tmp_path / "opt/cni/bin/railcni-bundle/current/bin/railcni"
    done = subprocess.run([installed, "uninstall", *where], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "railcni is no longer in" in done.stdout
    assert list((tmp_path / "opt/cni/bin").iterdir()) == []


@pytest.mark.skipif(bool(unusable()), reason=unusable())
def test_the_demo_runs_from_it(bundle: Path) -> None:
    done = subprocess.run([bundle / "bin/railcni", "demo"], env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def outcomes(report: Path) -> dict[str, str]:
    """What became of each test, from pytest's JUnit report: passed, skipped (or xfailed), failure, error."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        marks = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = (marks or {"passed"}).pop()
    return found


def suite(name: str, environ: dict[str, str]) -> dict[str, str]:
    """Run the black-box tests; the report stays below build/tests/."""
    report = ROOT / f"build/tests/{name}.xml"
    two = ("-n", "2", "--dist", "loadfile")  # as `make test` does
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *two, f"--junitxml={report}", *SUITE]
    done = subprocess.run(argv, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True)
    report.with_suffix(".log").write_text(done.stdout + done.stderr)
    return outcomes(report)


@pytest.mark.skipif(bool(unusable()), reason=unusable())
@pytest.mark.skipif(bool(CHROOT), reason="makes its own roots")
@pytest.mark.timeout(7200)
def test_the_black_box_tests_have_the_same_outcomes_on_other_hosts(bundle: Path) -> None:
    busybox = ROOT / "build/tests/busybox"
    assert str(busybox) not in Path("/proc/self/mountinfo").read_text()  # what is mounted there would be removed
    shutil.rmtree(busybox, ignore_errors=True)
    environ = {"RAILCNI_BIN": str(bundle / "bin")}
    subprocess.run([sys.executable, "-m", "tests.roots", busybox], cwd=ROOT, env=os.environ | environ, check=True)
    hosts = {"checkout": {}, "bundle": environ, "busybox": {**environ, "RAILCNI_CHROOT": str(busybox)}}
    if OTHER:
        argv = [sys.executable, "-m", "tests.roots", "--of", OTHER]
        subprocess.run(argv, cwd=ROOT, env=os.environ | environ, check=True)
        hosts["other"] = {**environ, "RAILCNI_CHROOT": OTHER}
    found = {name: suite(name, environ) for name, environ in hosts.items()}
    wanted = found.pop("checkout")
    assert len(wanted) > (500 if SUITE == WHOLE else 0)
    assert not [test for test, outcome in wanted.items() if outcome in ("failure", "error")]
    for name, there in found.items():
        differing = {t: (wanted.get(t), there.get(t)) for t in {*wanted, *there} if wanted.get(t) != there.get(t)}
        assert differing == {}, f"{name}: (from the checkout, there)"
