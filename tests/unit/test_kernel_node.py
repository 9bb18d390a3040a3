"""cni/shared/kernel/node.py: the node and its boots."""

import socket
import uuid
from pathlib import Path

import pytest

from cni.shared.kernel import node


def test_the_boot_has_a_uuid_that_stays() -> None:
    assert str(uuid.UUID(node.boot_id())) == node.boot_id()


def test_copies_of_one_image_on_two_machines_are_two_machines_and_a_machine_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "machine-id", tmp_path / "product_uuid"
    monkeypatch.setattr(node, "_MACHINE", tuple(map(str, told)))
    assert node.machine_id() == ""
    told[0].write_text("uninitialized\n")
    assert node.machine_id() == ""
    told[0].write_text("0123456789abcdef\n")
    alone = node.machine_id()
    told[1].write_text("one\n")
    one = node.machine_id()
    told[1].write_text("two\n")
    assert len({alone, one, node.machine_id()}) == 3
    assert "0123456789abcdef" not in alone
    told[1].write_text("one")
    assert node.machine_id() == one


def test_the_host_name_is_that_of_the_machine() -> None:
    assert node.host_name() == socket.gethostname()
