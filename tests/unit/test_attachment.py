"""The attachment records and their locks; state that a newer version has written is refused by name, and stays."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.shared.kernel import locks
from cni.shared.log import Log
from cni.shared.records import FORMAT, HeldLock, Records, _sealed
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment
from ipam.stores.base import CREATE, READ
from ipam.stores.file import schema
from ipam.stores.file.database import open_database

NET1, OTHER = Attachment("rdma", "c1", "net1"), Attachment("rdma", "c2", "net1")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(str(tmp_path / "state"), Log())


def test_a_record_reads_back_with_its_attachment_and_boot_until_removed(records: Records, tmp_path: Path) -> None:
    records.remove(NET1, "link")
    records.write(NET1, "link", {"netns": "/run/netns/pod1"})
    for path in [tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    record = records.read(NET1, "link")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    wanted = {"network": "rdma", "containerID": "c1", "ifname": "net1", "netns": "/run/netns/pod1", "bootID": boot}
    assert record and wanted.items() <= record.items() and "checksum" not in record
    records.write(NET1, "link", {**record, "pending": True})
    assert (records.read(NET1, "link") or {})["pending"] is True
    (path,) = (tmp_path / "state/attachments").iterdir()
    assert path.read_bytes().count(b"checksum") == 1
    for _ in range(2):
        records.remove(NET1, "link")
    assert (records.read(NET1, "link"), records.all()) == (None, [])


def test_records_are_listed_by_network_container_and_part(records: Records, tmp_path: Path) -> None:
    of_network, of_container, longer = (
        Attachment("rdma-2", "c3", "net1"), Attachment("rdma-3", "c1", "net2"), Attachment("c1", "c11", "c1"),
    )  # fmt: skip
    known = (NET1, of_network, of_container, longer, Attachment("n" * 300, "c2", "net1"))
    for attachment in known:
        records.write(attachment, "link", {})
        records.write(attachment, "ipam", {})
    stray = tmp_path / "state/attachments/leases.db"  # another program's
    stray.touch(0o600)
    assert [a for a, _ in records.of_network("rdma", "link")] == [NET1]
    assert {a for a, _ in records.of_container("c1", "link") or ()} == {NET1, of_container}
    assert {(a, part) for a, part, _ in records.all()} == {(a, part) for a in known for part in ("ipam", "link")}
    assert stray.exists()


def test_of_many_records_those_with_a_text_are_parsed_alone(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ADD over AddressLeases looks for a former sandbox of its pod: a node has hundreds of records."""
    for number in range(20):
        records.write(Attachment("rdma", f"c{number}", "net1"), "ipam", {"pod": ["ns", f"pöd-{number}", ""]})
    parsed: list[str] = []
    loads = codec.loads
    monkeypatch.setattr(codec, "loads", lambda data: parsed.append(data) or loads(data))
    assert [a.container_id for a, _ in records.of_network("rdma", "ipam", "c1", "pöd-7", "")] == ["c1", "c7"]
    assert len(parsed) == 2
    assert len(records.of_network("rdma", "ipam", "")) == 20


def test_names_longer_than_a_file_name_are_kept_apart(records: Records) -> None:
    long = [Attachment("n" * 300, "c" * 300, ifname) for ifname in ("net1", "net2")]
    for attachment in long:
        records.write(attachment, "link", {"mark": attachment.ifname})
    assert [(records.read(one, "link") or {})["mark"] for one in long] == ["net1", "net2"]
    assert {a for a, _ in records.of_network("n" * 300, "link")} == set(long)
    assert {a for a, _ in records.of_container("c" * 300, "link") or ()} == set(long)


POWER_LOSS = {
    "nothing": lambda data: b"", "its name and length": lambda data: bytes(len(data)),
    "its first sector": lambda data: data[:512], "all but its first sector": lambda data: bytes(512) + data[512:],
}  # fmt: skip


@pytest.mark.parametrize("left", POWER_LOSS)
def test_of_a_record_that_a_power_loss_has_cut_off_nothing_stays_but_a_line_in_the_log(
    records: Records, tmp_path: Path, capfd: pytest.CaptureFixture[str], left: str
) -> None:
    records.write(NET1, "link", {"config": "x" * 1000})
    (record,) = (tmp_path / "state/attachments").iterdir()
    record.write_bytes(POWER_LOSS[left](record.read_bytes()))
    assert records.read(NET1, "link") is None
    assert "power" in capfd.readouterr().err
    assert list(record.parent.iterdir()) == []


def test_a_locked_attachment_is_waited_for_only_so_long_and_the_error_names_it(records: Records) -> None:
    with records.locked(NET1, "link"):
        with pytest.raises(TryAgainLater, match=r"net1 of container c1 \(network rdma\)"):
            records.locked(NET1, "link", seconds=0.05)
        assert records.try_locked(NET1, "link") is None
        with records.locked(NET1, "ipam", seconds=0), records.locked(OTHER, "link", seconds=0):
            pass  # other parts and other attachments are free
    with records.locked(NET1, "link", seconds=0):
        pass


LOCKS: dict[str, tuple[int, Callable[[Records], HeldLock | None]]] = {
    "link": (1553992976026148123, lambda records: records.locked(NET1, "link")),
    "ipam": (3191687676378899826, lambda records: records.try_locked(NET1, "ipam")),
    "device": (232662962803675692, lambda records: records.locked_device("0000:3b:00.2")),
    "info file": (1116447989022164106, lambda records: records.locked_info_file("/run/info.json")),
    "address": (4407138314969845690, lambda records: records.try_locked_address("10.0.0.0-24", "10.0.0.1")),
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_the_byte_that_version_0_1_0_locks_and_no_other(records: Records, lock: str) -> None:
    held = LOCKS[lock][1](records)
    assert held
    with held, open(f"{records.directory}/lock", "r+b") as file:
        free = {name for name, (offset, _) in LOCKS.items() if locks.try_lock_byte(file.fileno(), offset)}
    assert free == LOCKS.keys() - {lock}


def test_a_state_directory_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IoFailure, match=str(tmp_path / "file/state")):
        Records(str(tmp_path / "file/state")).write(NET1, "link", {})


def test_a_record_in_which_one_bit_has_changed_is_no_record(records: Records, tmp_path: Path) -> None:
    records.write(NET1, "link", {"netns": "/run/netns/pod1"})
    (record,) = (tmp_path / "state/attachments").iterdir()
    data = record.read_bytes()
    for at in range(len(data)):
        record.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert records.read(NET1, "link") is None
    record.write_bytes(data)
    assert records.read(NET1, "link") is not None


def make_newer(record: Path) -> None:
    """Give a record the format of a version to come, which knows members that we do not."""
    document = codec.loads(record.read_bytes())
    del document["checksum"]
    record.write_bytes(_sealed({**document, "format": document["format"] + 1, "unheard-of": [1]}))


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
    assert f"format {FORMAT + 1}, and this railcni knows {FORMAT}" in shown and "rdma:c1:net1:link" in shown
    assert "install that version again" in caught.value.msg
    assert Records(state).of_container("c1", "link") is None
    assert files_of(state) == before


LISTINGS: dict[str, Callable[[Records], list[Any] | None]] = {
    "all": lambda records: [a for a, _, _ in records.all()],
    "all of a part": lambda records: [a for a, _, _ in records.all("link")],
    "of a network": lambda records: [a for a, _ in records.of_network("rdma", "link")],
    "of another container": lambda records: [a for a, _ in records.of_container("c2", "link") or ()],
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_newer_record_is_passed_by_in_listings(state: str, listing: str, capfd: pytest.CaptureFixture[str]) -> None:
    before, records = files_of(state), Records(state, Log())
    for _ in range(2):
        assert LISTINGS[listing](records) == [OTHER]
    told = [line for line in capfd.readouterr().err.splitlines() if "install that version again" in line]
    assert len(told) == (listing != "of another container")
    assert all("rdma:c1:net1:link" in line for line in told)
    assert files_of(state) == before


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
    for statement in (
        "PRAGMA journal_mode = WAL", "PRAGMA writable_schema = ON", f"PRAGMA user_version = {version + 1}",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE lease (FROM THE FUTURE)' WHERE name = 'lease'",
    ):  # fmt: skip
        connection.execute(statement)
    connection.commit()
    connection.close()
    data = path.read_bytes()
    words = f"leases.db has format {schema.FORMAT + 1}, and this railcni knows {schema.FORMAT}: a newer railcni"
    with pytest.raises(IoFailure, match=words) as caught:
        open_database(str(path), use)
    assert "install that version again" in caught.value.msg[:250]
    assert path.read_bytes() == data
    assert not [p for p in tmp_path.iterdir() if "damaged" in p.name]
