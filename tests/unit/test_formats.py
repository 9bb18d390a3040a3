"""State that a newer version has written: an older one says so, and leaves it as it is."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.shared.log import Log
from cni.shared.records import FORMAT, Records, _sealed
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure
from cni.shared.spec.request import Attachment
from ipam.stores.base import CREATE, READ
from ipam.stores.file import schema
from ipam.stores.file.database import open_database

NET1, OTHER = Attachment("rdma", "c1", "net1"), Attachment("rdma", "c2", "net1")


def make_newer(record: Path) -> bytes:
    """Give a record the format of a version to come, which knows members that we do not; what it holds then."""
    document = codec.loads(record.read_bytes())
    del document["checksum"]
    document["format"] += 1
    record.write_bytes(_sealed({**document, "unheard-of": [1]}))
    return record.read_bytes()


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The state directory of a node with two records of part link, that of NET1 of a newer format."""
    records = Records(str(tmp_path / "state"))
    records.write(NET1, "link", {"device": {"mac": "02:00:00:00:09:09"}, "pci": "0000:3b:00.2"})
    make_newer(next((tmp_path / "state/attachments").iterdir()))
    records.write(OTHER, "link", {"netns": "/run/netns/pod2"})
    return records.directory


def files_of(state: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(state, "attachments").iterdir()}


def test_a_record_of_a_newer_format_is_refused_by_name_to_whoever_asks_for_it_and_stays(state: str) -> None:
    before = files_of(state)
    with pytest.raises(IoFailure) as caught:
        Records(state).read(NET1, "link")
    shown = caught.value.msg[:250]
    assert f"format {FORMAT + 1}, and this railcni knows {FORMAT}" in shown
    assert "install that version again" in caught.value.msg
    assert "rdma:c1:net1:link" in shown
    assert files_of(state) == before


LISTINGS: dict[str, Callable[[Records], list[Any] | None]] = {
    "all": lambda records: [a for a, _, _ in records.all()],
    "all of a part": lambda records: [a for a, _, _ in records.all("link")],
    "of a network": lambda records: [a for a, _ in records.of_network("rdma", "link")],
    "of another container": lambda records: [a for a, _ in records.of_container("c2", "link") or ()],
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_record_of_a_newer_format_is_passed_by_in_listings_and_named_once(
    state: str, listing: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before, records = files_of(state), Records(state, Log())
    for _ in range(2):
        assert LISTINGS[listing](records) == [OTHER]
    told = [line for line in capfd.readouterr().err.splitlines() if "install that version again" in line]
    assert len(told) == (listing != "of another container")
    assert all("rdma:c1:net1:link" in line for line in told)
    assert files_of(state) == before


def test_what_a_container_has_cannot_be_told_when_one_of_its_records_is_of_a_newer_format(state: str) -> None:
    assert Records(state).of_container("c1", "link") is None


def test_a_device_that_a_record_of_a_newer_format_speaks_of_is_refused_by_any_of_its_addresses(state: str) -> None:
    records = Records(state)
    records.all()
    records.refuse_newer("", "0000:3b:00.3", "02:00:00:00:09:0a")
    for address in ("0000:3b:00.2", "02:00:00:00:09:09"):
        with pytest.raises(IoFailure, match=r"rdma:c1:net1:link has format .* install that version again"):
            records.refuse_newer("", address)


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
