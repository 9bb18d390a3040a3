"""The file store's own promises: what it costs, what a kill leaves, and what it says of a bad file, disk or place."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.shared.kernel import node
from cni.shared.spec.errors import InvalidConfig, IoFailure, StateDamaged, TryAgainLater
from ipam.leases import Lease
from ipam.stores import base
from ipam.stores.base import CHANGE, CREATE, READ, Claimed, Taken
from ipam.stores.file import FileStore, database, schema
from ipam.stores.file.database import Database, open_database
from tests.node import until
from tests.stores.kinds import owner, want

ROOT = Path(__file__).resolve().parents[2]
TEN = 10 << 24  # 10.0.0.0
LEAF = 4096

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount: run the tests with sudo")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def claim(store: FileStore, *offsets: int, container: str = "c1", sequence: int = 1, **more: Any) -> list[Lease]:
    answer = store.claim([want(TEN + offset) for offset in offsets], owner(container, sequence, **more))
    assert isinstance(answer, Claimed), answer
    return answer.leases


def offsets(store: FileStore) -> list[int]:
    return [lease.value - TEN for lease in store.leases("pool")]


def sql(directory: Path, *statements: str) -> list[Any]:
    """Execute statements in the file of a store; the rows of the last one."""
    with contextlib.closing(sqlite3.connect(directory / "leases.db")) as connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
    return rows


def consistent(directory: Path) -> None:
    """The file is whole, and its bitmaps say what its leases say."""
    assert sql(directory, "PRAGMA integrity_check") == [("ok",)]
    leased: dict[tuple[int, str], set[int]] = {}
    for pool, address, scope in sql(directory, "SELECT pool, address, scope FROM lease"):
        for kind, space in ((schema.POOL, pool), (schema.SCOPE, scope)):
            if space is not None:
                leased.setdefault((kind, space), set()).add(int.from_bytes(address, "big"))
    marked: dict[tuple[int, str], set[int]] = {}
    for kind, space, number, bits in sql(directory, "SELECT * FROM bitmap WHERE kind IN (0, 2)"):
        base, row = int.from_bytes(number, "big") * LEAF, int.from_bytes(bits, "little")
        assert row
        marked.setdefault((kind, space), set()).update(base + i for i in range(LEAF) if row >> i & 1)
    assert marked == leased


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program beside this one, which begins with a line of output and ends at a line of input."""
    with contextlib.ExitStack() as stack:

        def start(program: str, directory: Path) -> subprocess.Popen[str]:
            path = "import sys; sys.path.insert(0, sys.argv[1])\n"
            argv = [sys.executable, "-c", path + program, str(ROOT), str(directory)]
            child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(child)
            assert child.stdout and child.stdout.readline() == "ready\n"
            return child

        yield start


# --- files ---


def test_a_warm_worker_keeps_open_the_files_that_were_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "lease_files", {})

    def kept() -> list[str]:
        return [path for path, _ in base.lease_files or {}]

    used = [FileStore(str(tmp_path / str(number))) for number in range(database._MOST_KEPT + 2)]
    for store in used:
        claim(store, 1)
    assert kept() == [store.path for store in used[2:]]
    assert offsets(used[2]) == offsets(used[0]) == [1]
    assert kept() == [store.path for store in (*used[4:], used[2], used[0])]
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert sorted(path for path in opened if path.startswith(str(tmp_path))) == sorted(2 * kept())
    while base.lease_files:
        base.lease_files.popitem()[1]._shut()


@pytest.mark.parametrize(
    ("version", "said"),
    [(database._MAGIC | schema.FORMAT + 1, "format 2.*newer railcni"), (7, "another program")],
    ids=["newer", "of others"],
)
def test_a_file_that_a_warm_worker_has_open_and_then_refuses_is_left_alone_and_not_locked(
    directory: Path, monkeypatch: pytest.MonkeyPatch, version: int, said: str
) -> None:
    """The rest of the call would wait a minute for its own lock."""
    monkeypatch.setattr(base, "lease_files", {})
    store = FileStore(str(directory))
    claim(store, 1)
    sql(directory, f"PRAGMA user_version={version}")
    with pytest.raises(IoFailure, match=said):
        claim(store, 2)
    with open(store.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not base.lease_files and not [*directory.glob("*damaged*")]


def test_files_are_for_root_alone_and_nothing_is_made_before_a_claim_needs_it(directory: Path) -> None:
    directory = directory / "a ? # % ä;b"  # any characters
    for use in (READ, CHANGE):
        store = FileStore(str(directory), use)
        assert store.pools() == store.find(owner().attachment) == []
        assert store.release([Lease(want(TEN + 1), owner())]) == 0
    assert not directory.exists()
    claim(FileStore(str(directory)), 1)
    assert offsets(FileStore(str(directory))) == [1]
    assert directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == {"leases.db": 0o600, "leases.db-journal": 0o600}


def test_an_empty_file_is_an_empty_store(directory: Path) -> None:
    directory.mkdir()
    (directory / "leases.db").touch(0o600)
    for use in (READ, CHANGE):
        assert FileStore(str(directory), use).pools() == []
    claim(FileStore(str(directory)), 1)
    consistent(directory)


def test_a_database_of_another_program_is_left_alone(directory: Path) -> None:
    directory.mkdir()
    sql(directory, "CREATE TABLE t (x)")
    before = (directory / "leases.db").read_bytes()
    with pytest.raises(IoFailure, match=r"another program: set ipam\.dataDir"):
        claim(FileStore(str(directory)), 1)
    assert (directory / "leases.db").read_bytes() == before


# --- damage ---


def fill(directory: Path, count: int = 300) -> list[Lease]:
    """Enough leases for a file of many pages."""
    owners = [owner(f"container-{i}", i, pod=("ns", f"pod-{i}", f"uid-{i}")) for i in range(1, count)]
    leases = [Lease(want(TEN + i), who) for i, who in enumerate(owners, 1)]
    with FileStore(str(directory), restore=lambda: leases).session():
        pass
    assert len(offsets(FileStore(str(directory)))) == count - 1
    return leases


def overwritten(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "pages": lambda path: overwritten(path, 4096, os.urandom(path.stat().st_size - 4096)),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a table is missing": lambda path: sql(path.parent, "DROP TABLE bitmap"),
}
UNREADABLE: dict[str, Callable[[Path], object]] = {  # nor does the file tell for which boot it was found sound
    "no database": lambda path: path.write_bytes(b"nonsense" * 1000),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "header": lambda path: overwritten(path, 0, b"X" * 100),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_set_aside_and_the_next_call_begins_with_what_the_records_tell(
    directory: Path, damage: str
) -> None:
    leases = fill(directory)
    path = directory / "leases.db"
    DAMAGE[damage](path)
    broken = path.read_bytes()
    with pytest.raises(StateDamaged) as caught:
        claim(FileStore(str(directory), restore=lambda: leases), 500, container="new")
    assert caught.value.code == 103
    assert all(word in caught.value.msg[:250] for word in (str(path), "leases.db.damaged-1", "Try again"))
    assert not path.exists()
    assert (directory / "leases.db.damaged-1").read_bytes() == broken
    store = FileStore(str(directory), restore=lambda: leases)
    claim(store, 500, container="new", sequence=9999)
    assert offsets(store) == [*range(1, 300), 500]
    consistent(directory)


@pytest.fixture
def next_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on the boot is another one."""
    return lambda: monkeypatch.setattr(node, "_known", [f"boot-{len(node._known[0])}-{time.monotonic_ns()}"])


@pytest.mark.parametrize("damage", ["pages", "truncated", *UNREADABLE])
@pytest.mark.parametrize("use", [CHANGE, CREATE], ids=["change", "create"])
def test_a_file_that_a_power_loss_has_torn_is_set_aside_and_the_same_call_goes_on(
    directory: Path, damage: str, use: int, next_boot: Callable[[], None]
) -> None:
    leases = fill(directory)
    path = directory / "leases.db"
    {**DAMAGE, **UNREADABLE}[damage](path)
    broken = path.read_bytes()
    next_boot()
    store = FileStore(str(directory), use, restore=lambda: leases)
    if use == CREATE:
        claim(store, 500, container="new", sequence=9999)
    else:
        assert store.release(leases[:1]) == 0  # there is no file, and nothing to release
        assert not path.exists()
    assert offsets(FileStore(str(directory), restore=lambda: leases)) == [*range(1, 300), *[500][: use == CREATE]]
    assert (directory / "leases.db.damaged-1").read_bytes() == broken
    consistent(directory)


def test_an_unreadable_file_is_set_aside_in_any_boot(directory: Path) -> None:
    leases = fill(directory)
    for spoil in UNREADABLE.values():
        spoil(directory / "leases.db")
        store = FileStore(str(directory), restore=lambda: leases)
        claim(store, 500, container="new", sequence=9999)
        assert offsets(store) == [*range(1, 300), 500]


@pytest.mark.parametrize(
    "lost",
    ["DELETE FROM bitmap", "DELETE FROM lease WHERE sequence % 2", "SELECT 1"],
    ids=["bits", "leases", "nothing"],
)
def test_in_the_first_use_of_a_boot_the_bitmaps_become_those_of_the_leases(
    directory: Path, lost: str, next_boot: Callable[[], None]
) -> None:
    fill(directory)
    kept = sql(directory, lost, "SELECT address FROM lease ORDER BY 1")
    left = [int.from_bytes(key, "big") - TEN for (key,) in kept]
    next_boot()
    never = Lease(want(TEN + 700), owner("never"))
    assert offsets(FileStore(str(directory), READ)) == left  # a reader changes nothing
    store = FileStore(str(directory), CHANGE, restore=lambda: [never])
    assert store.release([never]) == 0
    assert offsets(store) == left
    consistent(directory)
    assert not [*directory.glob("*damaged*")]


def test_the_whole_file_is_looked_at_once_in_a_boot(
    directory: Path, next_boot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(directory)
    next_boot()
    looks = []
    examine = Database._examine
    monkeypatch.setattr(Database, "_examine", lambda self: looks.append(1) or examine(self))
    for number in range(500, 503):
        claim(FileStore(str(directory)), number, container=f"c{number}")
    assert looks == [1]


def test_a_second_damaged_file_does_not_replace_the_first(directory: Path) -> None:
    for number in (1, 2):
        fill(directory)
        (directory / "leases.db").write_bytes(b"nonsense %d" % number * 1000)
        claim(FileStore(str(directory)), 1)
        assert (directory / f"leases.db.damaged-{number}").exists()
        (directory / "leases.db").unlink()
    assert (directory / "leases.db.damaged-1").read_bytes().startswith(b"nonsense 1")


def test_a_reader_leaves_a_damaged_file_where_it_is(directory: Path) -> None:
    fill(directory)
    (directory / "leases.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(StateDamaged, match="damaged"):
        FileStore(str(directory), READ).pools()
    assert sorted(p.name for p in directory.iterdir()) == ["leases.db", "leases.db-journal"]


def test_bitmaps_that_contradict_the_leases_are_damage(directory: Path) -> None:
    claim(FileStore(str(directory)), 1)
    sql(directory, "DELETE FROM bitmap")
    with pytest.raises(StateDamaged, match="bitmaps and leases differ"):
        claim(FileStore(str(directory)), 1, container="c2")


def test_of_restored_leases_that_want_one_address_the_later_claim_has_it(directory: Path) -> None:
    old, new = Lease(want(TEN + 1), owner("old", 1)), Lease(want(TEN + 1), owner("new", 2))
    store = FileStore(str(directory), restore=lambda: [old, new])
    assert store.find(owner("new").attachment)
    assert not store.find(owner("old").attachment)


def test_nothing_is_restored_into_a_file_that_is_there(directory: Path) -> None:
    claim(FileStore(str(directory)), 1)
    assert offsets(FileStore(str(directory), restore=lambda: pytest.fail("asked for leases to restore"))) == [1]


def test_the_journal_of_a_file_that_was_set_aside_is_not_played_into_the_next(directory: Path, tmp_path: Path) -> None:
    """As after a kill between the two renames."""
    hot = hot_copy(directory, tmp_path)
    (hot / "leases.db").unlink()
    store = FileStore(str(hot))
    claim(store, 7)
    assert offsets(store) == [7]
    consistent(hot)


# --- kills ---


def hot_copy(directory: Path, tmp_path: Path) -> Path:
    """A copy of the store as a kill in the middle of a commit leaves it: pages half written, the journal hot."""
    fill(directory)
    connection = sqlite3.connect(directory / "leases.db", isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode=PERSIST; PRAGMA cache_size=1; BEGIN; DELETE FROM lease; UPDATE bitmap SET bits = x'01'"
    )
    copy = tmp_path / "hot"
    shutil.copytree(directory, copy)
    connection.execute("ROLLBACK")
    connection.close()
    assert (copy / "leases.db-journal").read_bytes()[:8] == bytes.fromhex("d9d505f920a163d7")
    return copy


@pytest.mark.parametrize("use", [READ, CHANGE, CREATE], ids=["read", "change", "create"])
def test_a_commit_that_was_killed_is_rolled_back_by_the_next_one_to_open_the_file(
    directory: Path, tmp_path: Path, use: int
) -> None:
    hot = hot_copy(directory, tmp_path)
    assert offsets(FileStore(str(hot), use)) == list(range(1, 300))
    consistent(hot)


def test_sqlite_is_told_not_to_sync_and_to_keep_its_journal(directory: Path) -> None:
    claim(FileStore(str(directory)), 1)
    opened = open_database(f"{directory}/leases.db", CHANGE)
    assert opened
    assert opened[0].run("PRAGMA synchronous") == [(0,)]  # OFF
    assert opened[0].run("PRAGMA journal_mode") == [("persist",)]
    opened[0].close()


# --- disks ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=700", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@needs_root
def test_a_full_disk_is_said_changes_nothing_and_still_lets_leases_go(small_disk: Path) -> None:
    store = FileStore(str(small_disk))
    claim(store, 0, container="first")
    (small_disk / "ballast").write_bytes(bytes(16384))
    with pytest.raises(IoFailure, match=f"(?s){small_disk}.*disk is full|disk is full.*{small_disk}"):
        for number in range(1, 1000):
            claim(store, number, container=f"c{number}-{'x' * 200}")
    assert offsets(store) == list(range(number))
    consistent(small_disk)
    assert store.release(store.find(owner("first").attachment)) == 1
    assert offsets(store) == list(range(1, number))
    (small_disk / "ballast").unlink()
    claim(store, number, container="late")
    consistent(small_disk)


def test_a_release_without_room_for_notes_frees_the_lease_alone(directory: Path) -> None:
    store = FileStore(str(directory))
    held = claim(store, 1, pod=("ns", "web-0", "u1"))
    store.cooldown = 600
    with store.session():
        store._rows("PRAGMA max_page_count=1")  # no page more than there are
        assert store.release(held) == 1
    assert offsets(store) == []
    assert sql(directory, "SELECT name FROM sqlite_master WHERE name IN ('former', 'cooling')") == []
    consistent(directory)


def test_a_read_that_the_disk_refuses_ends_a_release_with_its_reason(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(str(directory))
    held = claim(store, 0)
    real = Database.run

    def run(self: Database, sql: str, *values: object) -> list[object]:
        if sql == schema.DELETE:
            self._disconnect()  # as when SQLite takes the refusal for damage, and the whole file is looked through
            raise IoFailure("could not be read for a moment")
        return real(self, sql, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "run", run)
        with pytest.raises(IoFailure, match="for a moment"):
            store.release(held)
    assert store.release(held) == 1


@needs_root
def test_a_disk_that_is_full_from_the_beginning_is_said(small_disk: Path) -> None:
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
    store = FileStore(str(small_disk))
    with pytest.raises(IoFailure, match="disk is full|No space left"):
        claim(store, 1)
    (small_disk / "ballast").unlink()
    claim(store, 1)
    assert offsets(store) == [1]


@needs_root
@pytest.mark.parametrize("made", [True, False], ids=["store there", "no store"])
def test_a_read_only_disk_can_be_read_and_says_so_to_a_claim(small_disk: Path, made: bool) -> None:
    leases = claim(FileStore(str(small_disk)), 1) if made else []
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(IoFailure, match="Read-only") as caught:
        claim(FileStore(str(small_disk)), 2)
    assert str(small_disk) in caught.value.msg
    assert offsets(FileStore(str(small_disk), READ)) == [1] * made
    if made:
        with pytest.raises(IoFailure, match="Read-only"):
            FileStore(str(small_disk), CHANGE).release(leases)


RECORDED = (
    b"22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    b"23 22 0:22 / /proc rw,nosuid shared:12 - proc proc rw\n"
    b"31 22 0:27 / /run rw,nosuid shared:11 - tmpfs tmpfs rw,size=13187888k,mode=755\n"
    b"622 22 0:53 / /srv/pods rw,relatime shared:332 - nfs4 filer:/pods rw,vers=4.2,clientaddr=10.1.0.4,addr=10.1.0.2\n"
    b"637 22 0:54 / /srv/office rw,relatime shared:340 - cifs //office/share rw,vers=3.1.1,username=u\n"
    b"645 22 0:55 / /mnt/with\\040space rw,relatime shared:348 - fuse.sshfs u@host:/ rw,user_id=0,group_id=0\n"
    b"651 22 0:56 / /host rw,relatime - 9p hostshare rw,trans=virtio\n"
    b"662 22 0:57 / /var/lib/x rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n"
)


KINDS = {
    b"22": "",
    b"62": "",
    b"622": "nfs4",
    b"637": "cifs",
    b"645": "fuse.sshfs",
    b"651": "9p",
    b"662": "",
    b"999": "",
}


@pytest.mark.parametrize("mount_id", KINDS)
def test_a_network_file_system_is_known_by_its_mount(mount_id: bytes) -> None:
    assert database.find_remote(mount_id, RECORDED) == KINDS[mount_id]


@pytest.mark.parametrize("kind", ["nfs4", "ext4"])
def test_a_store_on_a_network_file_system_is_refused_before_anything_is_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    directory.mkdir()
    fd = os.open(directory, os.O_RDONLY)
    (mount_id,) = re.findall(r"mnt_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{fd}").read_text())
    os.close(fd)
    recorded = directory.parent / "mountinfo"
    recorded.write_text(f"{mount_id} 22 0:60 / {directory} rw - {kind} source rw\n")
    monkeypatch.setattr(database, "MOUNTINFO", str(recorded))
    if kind == "ext4":
        claim(FileStore(str(directory)), 1)
        return
    with pytest.raises(InvalidConfig, match=f'ipam.dataDir "{directory}" is on a file system of type {kind}') as caught:
        claim(FileStore(str(directory)), 1)
    assert caught.value.code == 7
    assert list(directory.iterdir()) == []


# --- other processes ---


def test_processes_that_claim_without_taking_turns_get_one_address_once(directory: Path) -> None:
    first, second = FileStore(str(directory)), FileStore(str(directory))
    assert first.occupied("pool", "", 4, TEN, TEN + 9) == second.occupied("pool", "", 4, TEN, TEN + 9) == 0
    claim(first, 1)
    answer = second.claim([want(TEN + 1)], owner("c2", 2))
    assert isinstance(answer, Taken)
    assert [w.value for w in answer.wants] == [TEN + 1]


HOLDER = """
from ipam.stores.file import FileStore
with FileStore(sys.argv[2]).session():
    print("ready", flush=True)
    sys.stdin.readline()
"""
WAITER = """
from ipam.stores.file import FileStore
print("ready", flush=True)
print(*(lease.value - (10 << 24) for lease in FileStore(sys.argv[2]).leases("pool")))
"""
ANOTHER_PROGRAM = """
import sqlite3
connection = sqlite3.connect(f"{sys.argv[2]}/leases.db")
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_lock_that_is_not_got_in_time_names_file_and_holder(
    directory: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    claim(FileStore(str(directory)), 1)
    child = started(HOLDER, directory)
    began = time.monotonic()
    with pytest.raises(TryAgainLater) as caught:
        FileStore(str(directory), seconds=0.2).pools()
    assert 0.15 < time.monotonic() - began < 5
    assert f"{directory}/leases.db" in caught.value.msg
    assert f"process {child.pid}" in caught.value.msg


def test_a_file_replaced_while_its_lock_was_waited_for_is_noticed(
    directory: Path, tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    claim(FileStore(str(directory)), 1)
    claim(FileStore(str(tmp_path / "other")), 1, 2, 3)
    former = started(HOLDER, directory)
    waiter = started(WAITER, directory)
    wait_until_blocked(waiter.pid, directory / "leases.db")
    (tmp_path / "other" / "leases.db").rename(directory / "leases.db")
    latter = started(HOLDER, directory)
    former.communicate("end\n")
    wait_until_blocked(waiter.pid, directory / "leases.db")  # the lock of the former file is worth nothing
    latter.communicate("end\n")
    assert waiter.communicate(timeout=30)[0] == "1 2 3\n"


def wait_until_blocked(pid: int, path: Path) -> None:
    """Until the process waits for the flock of the file: the kernel lists waiters with an arrow."""
    waits = re.compile(rf"-> FLOCK +ADVISORY +WRITE {pid} \S+:{path.stat().st_ino} ")
    assert until(lambda: waits.search(Path("/proc/locks").read_text()), 10)


def test_another_program_that_keeps_the_database_locked_is_an_error_to_retry(
    directory: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[..., subprocess.Popen[str]]
) -> None:
    monkeypatch.setattr("ipam.stores.file.database._BUSY_SECONDS", 0.1)
    claim(FileStore(str(directory)), 1)
    other = started(ANOTHER_PROGRAM, directory)
    with pytest.raises(TryAgainLater, match="another program"):
        claim(FileStore(str(directory)), 2, container="c2")
    other.communicate("end\n")
    assert offsets(FileStore(str(directory))) == [1]


def test_a_name_that_no_file_can_hold_is_a_fault_of_the_configuration_which_leaves_the_lock_free(
    directory: Path,
) -> None:
    store = FileStore(str(directory), seconds=0.1)
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="want another name"):
            store.claim([want(TEN + 1, "bad \ud800 name")], owner())
    assert FileStore(str(directory), seconds=0.1).pools() == []
    claim(FileStore(str(directory), seconds=0.1), 1)


# --- cost ---

# Once in a boot; of all bitmaps; of a pool's leases: for the command, and for a pool without addresses; of the tables, which are few.
SCANS = {"ALL", "POOLS", "EARLIER_BOOTS", "EXISTS"}


@pytest.mark.parametrize(
    "name", [n for n, v in vars(schema).items() if isinstance(v, str) and n.isupper() and n not in SCANS]
)
def test_every_statement_of_a_claim_or_release_goes_by_an_index(directory: Path, name: str) -> None:
    claim(FileStore(str(directory)), 1)
    sql(directory, schema.FORMER, schema.COOLING, schema.COOLING_UNTIL)
    plan = sql(directory, "EXPLAIN QUERY PLAN " + getattr(schema, name).replace("?", "NULL"))
    assert [line for *_, line in plan if "SCAN" in line or "TEMP B-TREE" in line] == []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], tuple[int, int, int]]:
    """Counts what a call costs: (statements, rows that they answer, instructions of SQLite's virtual machine)."""
    counted = [0, 0, 0]
    connect, run = Database._connect, Database.run

    def count() -> None:
        counted[2] += 1

    def connecting(self: Database) -> bool:
        answer = connect(self)
        self._connection.set_progress_handler(count, 1)
        return answer

    def running(self: Database, sql: str, *values: object) -> list[object]:
        rows = run(self, sql, *values)
        counted[0] += 1
        counted[1] += len(rows)
        return rows

    monkeypatch.setattr(Database, "_connect", connecting)
    monkeypatch.setattr(Database, "run", running)

    def measure(call: Callable[[], object]) -> tuple[int, int, int]:
        counted[:] = [0, 0, 0]
        call()
        return counted[0], counted[1], counted[2]

    return measure


@pytest.mark.long
def test_sixty_five_thousand_leases_make_no_claim_or_release_dearer(
    tmp_path: Path, steps: Callable[[Callable[[], object]], tuple[int, int, int]]
) -> None:
    def lowest_free(store: FileStore) -> None:
        with store.session():
            found = store.survey(owner("new", pod=("ns", "new", "")), [], True)
            assert (found.own, found.pods, found.former) == ([], [], [])
            at = store.next_open("pool", "", 4, TEN + LEAF, TEN + 65535)
            bits = store.occupied("pool", "", 4, at, at | LEAF - 1)
            value = at + (~bits & -~bits).bit_length() - 1
            assert isinstance(store.claim([want(value)], owner("new", 1, pod=("ns", "new", ""))), Claimed)

    def release(store: FileStore) -> None:
        with store.session():
            assert store.release(store.find(owner("new").attachment)) == 1

    cost = {}
    for count in (10, 65_000):
        values = [TEN + LEAF + i if i < 60_000 else TEN + i - 60_000 for i in range(count)]
        leases = [Lease(want(value), owner(f"c{i}", i, pod=("ns", f"p{i}", ""))) for i, value in enumerate(values)]
        directory = str(tmp_path / str(count))
        with FileStore(directory, restore=lambda leases=leases: leases).session():
            pass
        store = FileStore(directory)
        cost[count] = steps(lambda store=store: lowest_free(store)), steps(lambda store=store: release(store))
    for few, many in zip(cost[10], cost[65_000], strict=True):
        assert many[0] == few[0], "statements"
        assert many[1] <= few[1] + 2, "rows: a summary and a leaf that are not there in the small pool"
        assert many[2] <= 1.1 * few[2], "instructions"
