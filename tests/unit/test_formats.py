"""State that a newer version has written: an older one says so, and leaves it as it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cni import attachment
from cni.attachment import Book
from cni.spec import codec
from cni.spec.errors import IoFailure
from cni.spec.request import Attachment
from ipam.stores import schema
from ipam.stores.base import CREATE, READ
from ipam.stores.database import open_database

NET1 = Attachment("rdma", "c1", "net1")


def make_newer(record: Path) -> bytes:
    """Give a record the format of a version to come, which knows members that we do not; what it holds then."""
    document = codec.loads(record.read_bytes())
    del document["checksum"]
    document["format"] += 1
    record.write_bytes(attachment._sealed({**document, "unheard-of": [1]}))
    return record.read_bytes()


def test_a_record_of_a_newer_format_is_refused_by_name_and_stays(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "state"))
    book.write(NET1, "link", {"netns": "/run/netns/pod1"})
    (record,) = (tmp_path / "state/attachments").iterdir()
    data = make_newer(record)
    for act in (
        lambda: book.read(NET1, "link"),
        lambda: book.all(),
        lambda: book.of_network("rdma", "link"),
    ):
        with pytest.raises(IoFailure) as caught:
            act()
        shown = caught.value.msg[:250]
        assert f"format {attachment.FORMAT + 1}, and this railcni knows {attachment.FORMAT}" in shown
        assert "install that version again" in caught.value.msg
        assert record.name in shown
    assert record.read_bytes() == data
    assert list(record.parent.iterdir()) == [record]


@pytest.mark.parametrize("use", [CREATE, READ])
def test_a_lease_file_of_a_newer_format_is_refused_and_not_one_byte_of_it_changes(tmp_path: Path, use: int) -> None:
    """Not even when it has another journal, and tables that this SQLite does not understand."""
    path = tmp_path / "leases.db"
    opened = open_database(str(path), CREATE)
    assert opened
    opened[0].commit()
    opened[0].close()
    connection = sqlite3.connect(path)
    ((version,),) = connection.execute("PRAGMA user_version")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE lease (FROM THE FUTURE)' WHERE name = 'lease'")
    connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.commit()
    connection.close()
    data = path.read_bytes()
    words = f"leases.db has format {schema.FORMAT + 1}, and this railcni knows {schema.FORMAT}: a newer railcni"
    with pytest.raises(IoFailure, match=words) as caught:
        open_database(str(path), use)
    assert "install that version again" in caught.value.msg[:250]
    assert path.read_bytes() == data
    assert not [p for p in tmp_path.iterdir() if "damaged" in p.name]
