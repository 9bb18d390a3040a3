"""railcni agent: what a kubelet's probes get from it."""

from __future__ import annotations

import signal
import socket
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni.cluster.agent.agent import Health
from cni.node.installation import change
from cni.node.installation.change import Folder
from tests.blackbox.test_install import COMMAND, make_bundle
from tests.node import page


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins"
    folder.mkdir()
    change.install(Folder(str(folder), str(folder)), make_bundle(tmp_path / "bundle", "A"))
    return folder


class Agent:
    def __init__(self, plugins: Path, listen: str = "127.0.0.1:0") -> None:
        options = ["--to", str(plugins), "--state-dir", str(plugins.parent / "state"), "--listen", listen]
        options += ["--no-collect", "--service-account", str(plugins.parent)]  # which has no token
        self.process = subprocess.Popen([*COMMAND, "agent", *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = [self.process.stderr.readline(), self.process.stderr.readline()]
        self.url = self.said[0].partition("url=")[2].strip().rpartition("/")[0]

    def get(self, path: str) -> tuple[int, str]:
        return page(self.url + path)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        out = self.process.wait(timeout=10)
        assert self.process.stderr is not None
        assert 'msg="ended by a signal"' in self.process.stderr.read()
        self.process.stderr.close()
        return out


@pytest.fixture
def agent(plugins: Path) -> Iterator[Agent]:
    started = Agent(plugins)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()
    if started.process.stderr and not started.process.stderr.closed:
        started.process.stderr.close()


def test_it_answers_by_what_is_installed_and_ends_at_once(agent: Agent, plugins: Path, tmp_path: Path) -> None:
    """What is wrong with an installation, in all its kinds, is for tests/cli/test_installation.py and test_install.py."""
    assert "url=http://127.0.0.1:" in agent.said[0]
    assert agent.get("/healthz") == agent.get("/readyz") == (200, "ok\n")
    assert "railcni_installation_healthy 1" in agent.get("/metrics")[1]
    assert agent.get("/")[0] == 404

    current = (plugins / "railcni-bundle/current").readlink()
    (plugins / "railcni-bundle/current").unlink()
    status, told = agent.get("/readyz")
    assert (status, "current leads to no version" in told) == (503, True)
    (plugins / "railcni-bundle/current").symlink_to(current)

    (plugins / "railcni-whereabouts").unlink()
    missing = (503, f"{plugins}/railcni-whereabouts is missing: run `railcni install`\n")
    assert agent.get("/healthz") == agent.get("/readyz") == missing
    (plugins / "railcni-whereabouts").symlink_to("railcni-bundle/current/bin/whereabouts")
    assert agent.get("/readyz")[0] == 200

    program = plugins / "railcni-bundle/current/bin/macvlan"
    text = program.read_text()
    program.write_text("#!/bin/sh\necho CNI macvlan plugin v1.5.1\n")
    status, told = agent.get("/healthz")
    assert (status, "is no longer railcni's: another installer has overwritten it" in told) == (503, True)
    program.write_text(text)

    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    assert "others can write it" in agent.get("/healthz")[1]
    (tmp_path / "state").chmod(0o700)

    with socket.create_connection(("127.0.0.1", int(agent.url.rpartition(":")[2]))):  # says nothing, and goes on so
        assert agent.get("/healthz")[0] == 200
    assert agent.stop() == 0


def test_it_starts_where_nothing_is_installed_yet_and_says_so(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "later", "[::1]:0")
    try:
        assert "does not exist" in agent.get("/readyz")[1]
        (tmp_path / "later").mkdir()
        assert "railcni is not installed there" in agent.get("/readyz")[1]
    finally:
        assert agent.stop() == 0


def test_an_address_that_is_taken_is_said(plugins: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shown = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([*COMMAND, "agent", "--to", plugins, "--listen", shown], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"cannot listen on {shown}: Address already in use" in done.stderr


def test_plugins_are_run_only_when_one_of_them_has_changed(plugins: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    programs = [p for p in (plugins / "railcni-bundle/current/bin").iterdir() if not p.is_symlink()]
    for program in programs:
        program.write_text(program.read_text() + f"\necho >> {calls}\n")
    health = Health(Namespace(root="/", plugin_dir=str(plugins), state_dir=str(tmp_path / "state")))
    for _ in range(3):
        assert health.faults() == []
    assert len(calls.read_text()) == len(programs)
    (plugins / "railcni-bundle/current/bin/macvlan").touch()
    assert health.faults() == []
    assert len(calls.read_text()) == 2 * len(programs)
