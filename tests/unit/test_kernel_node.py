"""cni/kernel/node.py: the node and its boots."""

from __future__ import annotations

import socket
import uuid

from cni.kernel import node


def test_the_boot_has_a_uuid_that_stays() -> None:
    assert str(uuid.UUID(node.boot_id())) == node.boot_id()


def test_the_host_name_is_that_of_the_machine() -> None:
    assert node.host_name() == socket.gethostname()
