"""An API server with two nodes, and agents beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.rig import Rig
from tests.stores import kubernetes_proxy


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    server = kubernetes_proxy.start()
    server.core.add_node("n1")
    server.core.add_node("n2")
    found = Rig(server, tmp_path)
    yield found
    found.close()
    server.close()
