"""The attachment records and their locks."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cni.shared.kernel import locks
from cni.shared.log import Log
from cni.shared.records import HeldLock, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment

NET1 = Attachment("rdma", "c1", "net1")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(str(tmp_path / "state"), Log())


def test_a_record_reads_back_with_its_attachment_and_boot(records: Records) -> None:
    records.write(NET1, "link", {"netns": "/run/netns/pod1"})
    record = records.read(NET1, "link")
    assert record is not None
    assert (record["network"], record["containerID"], record["ifname"]) == ("rdma", "c1", "net1")
    assert record["netns"] == "/run/netns/pod1"
    assert record["bootID"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_state_is_for_its_owner_alone(records: Records, tmp_path: Path) -> None:
    records.write(NET1, "link", {})
    for path in [tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_removed_record_is_gone_and_removing_it_again_is_no_fault(records: Records) -> None:
    records.remove(NET1, "link")
    records.write(NET1, "link", {})
    records.remove(NET1, "link")
    records.remove(NET1, "link")
    assert records.read(NET1, "link") is None
    assert records.all() == []


def test_records_are_listed_by_network_and_part(records: Records) -> None:
    other = Attachment("rdma-2", "c1", "net1")
    for attachment in (NET1, other):
        records.write(attachment, "link", {})
        records.write(attachment, "ipam", {})
    assert [a for a, _ in records.of_network("rdma", "link")] == [NET1]
    expected = {(a, part) for a in (NET1, other) for part in ("ipam", "link")}
    assert {(a, part) for a, part, _ in records.all()} == expected


def test_of_many_records_those_alone_are_parsed_that_hold_a_text(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    long = [Attachment("n" * 300, "c" * 300, "net1"), Attachment("n" * 300, "c" * 300, "net2")]
    for attachment in long:
        records.write(attachment, "link", {"mark": attachment.ifname})
    for attachment in long:
        assert (records.read(attachment, "link") or {})["mark"] == attachment.ifname
    assert {a for a, _ in records.of_network("n" * 300, "link")} == set(long)
    assert {a for a, _ in records.of_container("c" * 300, "link")} == set(long)


def test_records_are_listed_by_container(records: Records) -> None:
    other, longer = Attachment("rdma-2", "c1", "net2"), Attachment("c1", "c11", "c1")
    for attachment in (NET1, other, longer, Attachment("n" * 300, "c2", "net1")):
        records.write(attachment, "link", {})
        records.write(attachment, "ipam", {})
    assert {a for a, _ in records.of_container("c1", "link")} == {NET1, other}


POWER_LOSS = {
    "nothing": lambda data: b"",
    "its name and length": lambda data: bytes(len(data)),
    "its first sector": lambda data: data[:512],
    "all but its first sector": lambda data: bytes(512) + data[512:],
}


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
        with (
            records.locked(NET1, "ipam", seconds=0),
            records.locked(Attachment("rdma", "c2", "net1"), "link", seconds=0),
        ):
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


def test_a_lock_goes_with_the_process_that_held_it(records: Records) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        records.locked(NET1, "link")
        os.write(writing, b"1")
        os.kill(os.getpid(), 9)
    os.read(reading, 1)
    os.waitpid(child, 0)
    with records.locked(NET1, "link", seconds=5):
        pass


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


def test_a_record_that_is_written_again_has_one_checksum(records: Records, tmp_path: Path) -> None:
    records.write(NET1, "link", {"pending": False})
    record = records.read(NET1, "link")
    assert record and "checksum" not in record
    records.write(NET1, "link", {**record, "pending": True})
    assert (records.read(NET1, "link") or {})["pending"] is True
    (path,) = (tmp_path / "state/attachments").iterdir()
    assert path.read_bytes().count(b"checksum") == 1
