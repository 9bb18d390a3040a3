"""Fixtures: the executables, built once; a node for each test, on which a plugin can do no harm."""

import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import hypothesis
import pytest

from cni.shared import policy
from tests import etcd, namespaces, served, warm
from tests import node as nodes
from tests.users import AnotherUser, import_all

hypothesis.settings.register_profile(  # how busy the machine is decides no test, and in CI no draw does
    "railcni", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("railcni")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("timeout"):  # tests/unit does without it
        parser.addini("timeout", "seconds that a test may take, for the plugin pytest-timeout")
    parser.addoption(
        "--executables",
        type=Path,
        default=nodes.BIN,
        metavar="DIR",
        help="run the black-box tests against the plugins in DIR, such as /usr/lib/cni, to compare them with ours",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout: seconds that the test may take, for the plugin pytest-timeout")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """No test sees what a railcni of this host has left: neither its flat file and policy, nor its records and leases."""
    if os.geteuid() == 0:
        namespaces.hide(("/etc/cni", "/var/lib/cni"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The thousands of tests are no garbage, so no collector looks at them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Make no cases of the tests that are long as a whole, unless long tests are wanted: each process of a run makes them all."""
    marks = getattr(obj, "pytestmark", []) if isinstance(obj, FunctionType) else []
    is_unwanted = collector.config.option.markexpr == "not long" and any(mark.name == "long" for mark in marks)
    return [] if is_unwanted else None


@pytest.fixture(scope="session")
def executables(request: pytest.FixtureRequest) -> Path:
    """The directory of the plugins under test; ours are made first."""
    folder: Path = request.config.getoption("--executables")
    if folder == nodes.ROOT / "bin":
        command = ["make", "-s", "plugins", f"PYTHON={sys.executable}"]
        with (nodes.ROOT / "Makefile").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # each process of a run makes them
            made = subprocess.run(command, cwd=nodes.ROOT, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    return folder.resolve()


@pytest.fixture
def node(executables: Path, request: pytest.FixtureRequest) -> Iterator[nodes.Node]:
    """A fresh node. Of a test that is marked `forked` most calls do not run the executable."""
    why = nodes.unusable()
    if why:
        pytest.skip(why)
    with nodes.Node(executables, is_forked=request.node.get_closest_marker("forked") is not None) as fresh:
        yield fresh


@pytest.fixture
def another_user() -> AnotherUser:
    """A user that is not root. The modules are imported before: the clone may lie where root alone can enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    import_all()
    return AnotherUser()


# The files that take longest, some 30 to 120 s: `make test` begins with them, so that none of them is still running when
# all others have ended.
_LONGEST = (
    "blackbox/test_warm.py", "stores/test_lease_life.py", "agent/test_kubectl.py", "agent/test_agent.py",
    "dra/test_driver.py", "blackbox/test_masters.py", "stores/test_etcd_store.py", "blackbox/test_ipam_migrate.py",
    "blackbox/test_host_device.py", "blackbox/test_hostile.py", "stores/test_kubernetes_store.py",
    "device_plugin/test_kubelet.py", "containerd/test_pods.py",
)  # fmt: skip


def _longest_first(item: pytest.Item) -> int:
    name = "/".join(item.path.parts[-2:])
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    served.share_out(items)
    config.hook.pytest_deselected(items=served.choose(items, are_whole="::" not in "".join(config.args)))
    items.sort(key=_longest_first)
    for item in items:
        if "another_user" in getattr(item, "fixturenames", ()):
            item.add_marker("another_user")


@pytest.fixture
def free_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In this process networks may name any path and server: those of tests lie outside of the usual roots."""
    roots = {"dataRoots": [str(tmp_path)], "logRoots": ["/"], "configRoots": ["/"], "storeHosts": ["*"]}
    monkeypatch.setattr(policy, "_current", policy.Policy(roots))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    reports = [r for how in ("passed", "failed", "skipped") for r in stats.get(how, ())]
    if nodes.IS_WARM:
        terminalreporter.write_line(warm.summary())
    cells = [r for r in reports if r.nodeid.startswith("tests/hosts/") and hasattr(r, "user_properties")]
    if cells:
        from tests.hosts import summary

        for line in summary.lines(cells):
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if nodes.IS_WARM and warm.are_few():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    etcd.end_shared()
