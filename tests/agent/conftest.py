"""An API server with two nodes, and agents beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipam.stores.ippool import locks
from tests import command
from tests.agent.rig import Rig
from tests.stores import kubernetes_proxy


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "locks"))
    monkeypatch.setenv(command.LOCKS, str(tmp_path / "locks"))
    server = kubernetes_proxy.start()
    server.core.add_node("n1")
    server.core.add_node("n2")
    found = Rig(server, tmp_path)
    yield found
    found.close()
    server.close()
