"""An API server with two nodes, and agents beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.rig import Rig
from tests.stores.kubernetes_api import ApiServer


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    server = ApiServer()
    server.core.add_node("n1")
    server.core.add_node("n2")
    found = Rig(server, tmp_path)
    yield found
    found.close()
    server.close()
