"""The attachment records and their locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cni.attachment import Book
from cni.log import Log
from cni.spec.errors import IoFailure, TryAgainLater
from cni.spec.request import Attachment

NET1 = Attachment("rdma", "c1", "net1")


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(str(tmp_path / "state"), Log())


def test_a_record_reads_back_with_its_attachment_and_boot(book: Book) -> None:
    book.write(NET1, "link", {"netns": "/run/netns/pod1"})
    record = book.read(NET1, "link")
    assert record is not None
    assert (record["network"], record["containerID"], record["ifname"]) == ("rdma", "c1", "net1")
    assert record["netns"] == "/run/netns/pod1"
    assert record["bootID"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_state_is_for_its_owner_alone(book: Book, tmp_path: Path) -> None:
    book.write(NET1, "link", {})
    for path in [tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_removed_record_is_gone_and_removing_it_again_is_no_fault(book: Book) -> None:
    book.remove(NET1, "link")
    book.write(NET1, "link", {})
    book.remove(NET1, "link")
    book.remove(NET1, "link")
    assert book.read(NET1, "link") is None
    assert book.all() == []


def test_records_are_listed_by_network_and_part(book: Book) -> None:
    other = Attachment("rdma-2", "c1", "net1")
    for attachment in (NET1, other):
        book.write(attachment, "link", {})
        book.write(attachment, "ipam", {})
    assert [a for a, _ in book.of_network("rdma", "link")] == [NET1]
    expected = {(a, part) for a in (NET1, other) for part in ("ipam", "link")}
    assert {(a, part) for a, part, _ in book.all()} == expected


def test_names_longer_than_a_file_name_are_kept_apart(book: Book) -> None:
    long = [Attachment("n" * 300, "c" * 300, "net1"), Attachment("n" * 300, "c" * 300, "net2")]
    for attachment in long:
        book.write(attachment, "link", {"mark": attachment.ifname})
    for attachment in long:
        assert (book.read(attachment, "link") or {})["mark"] == attachment.ifname
    assert {a for a, _ in book.of_network("n" * 300, "link")} == set(long)
    assert {a for a, _ in book.of_container("c" * 300, "link")} == set(long)


def test_records_are_listed_by_container(book: Book) -> None:
    other, longer = Attachment("rdma-2", "c1", "net2"), Attachment("c1", "c11", "c1")
    for attachment in (NET1, other, longer, Attachment("n" * 300, "c2", "net1")):
        book.write(attachment, "link", {})
        book.write(attachment, "ipam", {})
    assert {a for a, _ in book.of_container("c1", "link")} == {NET1, other}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"network": 1}', b"\xff"], ids=repr)
def test_a_damaged_record_is_set_aside_and_said(
    book: Book, tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes
) -> None:
    book.write(NET1, "link", {})
    (record,) = (tmp_path / "state/attachments").iterdir()
    record.write_bytes(content)
    assert book.read(NET1, "link") is None
    assert (record.parent / f".damaged.{record.name}").read_bytes() == content
    assert "damaged" in capfd.readouterr().err
    assert book.all() == []


def test_a_locked_attachment_is_waited_for_only_so_long_and_the_error_names_it(book: Book) -> None:
    with book.locked(NET1, "link"):
        with pytest.raises(TryAgainLater, match=r"net1 of container c1 \(network rdma\)"):
            book.locked(NET1, "link", seconds=0.05)
        assert book.try_locked(NET1, "link") is None
        with book.locked(NET1, "ipam", seconds=0), book.locked(Attachment("rdma", "c2", "net1"), "link", seconds=0):
            pass  # other parts and other attachments are free
    with book.locked(NET1, "link", seconds=0):
        pass


def test_a_lock_goes_with_the_process_that_held_it(book: Book) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        book.locked(NET1, "link")
        os.write(writing, b"1")
        os.kill(os.getpid(), 9)
    os.read(reading, 1)
    os.waitpid(child, 0)
    with book.locked(NET1, "link", seconds=5):
        pass


def test_a_state_directory_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IoFailure, match=str(tmp_path / "file/state")):
        Book(str(tmp_path / "file/state")).write(NET1, "link", {})


def test_a_record_in_which_one_bit_has_changed_is_no_record(book: Book, tmp_path: Path) -> None:
    book.write(NET1, "link", {"netns": "/run/netns/pod1"})
    (record,) = (tmp_path / "state/attachments").iterdir()
    data = record.read_bytes()
    for at in range(len(data)):
        record.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert book.read(NET1, "link") is None
    record.write_bytes(data)
    assert book.read(NET1, "link") is not None


def test_a_record_that_is_written_again_has_one_checksum(book: Book, tmp_path: Path) -> None:
    book.write(NET1, "link", {"pending": False})
    record = book.read(NET1, "link")
    assert record and "checksum" not in record
    book.write(NET1, "link", {**record, "pending": True})
    assert (book.read(NET1, "link") or {})["pending"] is True
    (path,) = (tmp_path / "state/attachments").iterdir()
    assert path.read_bytes().count(b"checksum") == 1
