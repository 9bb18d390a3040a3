"""Records of what outlives a boot, in stores that nodes share: whole on every disk that a power loss may leave."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import backing, tree
from tests.faults.inject import Command, Injector, unavailable
from tests.faults.journal import RECORDED, Disk, Journal
from tests.faults.scene import IFNAME, NETWORK, Attachment, Scene
from tests.faults.trace import Call, parse
from tests.faults.tree import Edit
from tests.node import GO_PLUGINS

pytestmark = [pytest.mark.skipif(bool(unavailable()), reason=unavailable()), pytest.mark.long]

NEED = "needs Debian's package containernetworking-plugins"
DISKS = 24  # of each point
LEASE = f"cni/railcni/attachments/{NETWORK}:a:{IFNAME}:ipam"
LINK = f"cni/railcni/attachments/{NETWORK}:a:{IFNAME}:link"
_CLAIM = "".join(f"\\x{octet:02x}" for octet in b"/void/")  # as strace -xx writes
REMINDER = "cni/railcni/pending"

UNSYNCED = {
    "a record": Edit("cni/shared/kernel/files.py", r"os\.fsync\(fd\)(\n {8}finally)", r"pass\1"),
    "the name of a record": Edit("cni/shared/kernel/files.py", r"( {4}if durable:\n {8})sync\(directory\)", r"\1pass"),
    "a new directory": Edit("cni/shared/kernel/files.py", r"sync\(parent or \"/\"\)", "pass"),
    "the reminder": Edit("cni/shared/records.py", r"files\.sync\(self\.directory\)", "pass"),
    "a record of another's addresses": Edit("cni/link/verbs/attach.py", r"self\._record\[\"foreign\"\] = True", "pass"),
}


def puts(call: Call) -> bool:
    """Whether the call sends etcd a request that writes."""
    return call.name == "sendto" and _CLAIM in call.text


def made(call: Call) -> bool:
    """Whether the call starts another process."""
    return call.name in ("clone", "clone3", "vfork")


class History:
    """Calls, and the disks that a power loss may leave at each point of them."""

    def __init__(self, scene: Scene, injector: Injector) -> None:
        self.scene = scene
        self._injector = injector
        top = scene.node.path("/var/lib")
        self.journal = Journal(Path(shutil.copytree(top, scene.node.path("/run/before"))))

    def call(self, command: Command, began: Callable[[Call], bool]) -> int:
        """Make the call; how many entries there were when it first made a call of which `began` says so."""
        options = ("-xx", "-s", "1000000", "-e", f"trace={RECORDED},sendto,clone,clone3,vfork")
        outcome, text = self._injector.record(command, *options)
        assert outcome.reply
        outcome.reply.succeeded()
        calls = parse(text)
        first = next((i for i, each in enumerate(calls) if began(each)), len(calls))
        self.journal.record(calls[:first], 0)
        point = len(self.journal.entries) - 1
        self.journal.record(calls[first:], 0)
        return point

    def lacking(self, since: int, holds: Callable[[dict[str, bytes | None]], bool]) -> list[str]:
        """The points from `since` to now at which a disk does not hold what it must."""
        found = []
        for point in range(since, len(self.journal.entries)):
            disks: list[Disk] = self.journal.disks(point, DISKS, 0)
            found += [f"behind {self.journal.entries[point]}"[:100] for disk in disks if not holds(disk.tree())]
        return found


def is_whole(data: bytes | None) -> bool:
    """Whether the record is all there: its last member is the checksum."""
    return bool(data) and b"\0" not in (data or b"") and (data or b"").endswith(b'"}')


def over_etcd(executables: Path) -> list[str]:
    """What is missing on a disk after an ADD, and after a DEL while etcd is out of reach."""
    with Scene("macvlan", executables, first=True, store="etcd") as scene, Injector(scene.node) as injector:
        history = History(scene, injector)
        who = Attachment("a", "a", scene.node.pod("a"), "")
        claimed = history.call(scene.command("ADD", who), puts)
        found = history.lacking(claimed, lambda disk: is_whole(disk.get(LEASE)))
        with scene.patience(1):
            scene.backing.pause()  # type: ignore[union-attr]
            try:
                history.call(scene.command("DEL", who), lambda _: False)
            finally:
                scene.backing.resume()  # type: ignore[union-attr]
        end = len(history.journal.entries) - 1
        return found + history.lacking(end, _is_pending)


def _is_pending(disk: dict[str, bytes | None]) -> bool:
    data = disk.get(LEASE)
    return is_whole(data) and json.loads(data or b"")["pending"] is True and REMINDER in disk


def over_host_local(executables: Path) -> list[str]:
    """What is missing on a disk after an ADD whose addresses host-local gives."""
    with Scene("macvlan", executables, first=True) as scene, Injector(scene.node) as injector:
        history = History(scene, injector)
        who = Attachment("a", "a", scene.node.pod("a"), "")
        command = scene.command("ADD", who)
        local = {"type": "host-local", "ranges": [[{"subnet": "10.6.0.0/24"}]], "dataDir": "/run/host-local"}
        config = {**json.loads(command.stdin), "cniVersion": "1.0.0", "ipam": local}
        environ = {**command.environ, "CNI_PATH": f"{command.environ['CNI_PATH']}:{GO_PLUGINS}"}
        asked = history.call(Command(command.executable, environ, json.dumps(config).encode()), made)
        return history.lacking(asked, lambda disk: is_whole(disk.get(LINK)))


HISTORIES = {"etcd": over_etcd, "host-local": over_host_local}


def unusable(store: str) -> str:
    """Why the history cannot be run here, or ""."""
    if store == "etcd":
        return backing.unavailable("etcd")
    return "" if (GO_PLUGINS / "host-local").exists() else NEED


@pytest.mark.parametrize("store", HISTORIES)
def test_a_record_of_what_outlives_the_boot_is_whole_on_every_disk(executables: Path, store: str) -> None:
    if unusable(store):
        pytest.skip(unusable(store))
    assert HISTORIES[store](executables) == []


@pytest.mark.parametrize("what", UNSYNCED)
def test_a_missing_sync_is_found(executables: Path, tmp_path: Path, what: str) -> None:
    store = "host-local" if what.endswith("addresses") else "etcd"
    if unusable(store):
        pytest.skip(unusable(store))
    assert HISTORIES[store](tree.copy(tmp_path, [UNSYNCED[what]])) != []
