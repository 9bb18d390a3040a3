"""A node on which a victim is attached and detached beside a bystander, and what must be true of it at any time.

Before each case the state directory is put back, and the victim has a new sandbox: the state of a new node, much faster."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import warm
from tests.fabric import rules
from tests.faults import devices, state
from tests.faults.backing import BACKINGS
from tests.faults.inject import Command, Outcome
from tests.faults.known_good import KnownGood
from tests.faults.state import State
from tests.faults.whole import Whole
from tests.hosts import dump
from tests.node import STATE, Call, Node, Pod, Reply
from tests.view import View, lasting

if TYPE_CHECKING:
    from tests.faults.backing import FileBacking as Backing
    from tests.faults.served import Trouble

NETWORK, IFNAME, MASTER = "faults", "net1", "ens2f0"
DEVICES = {"bystander": "ens8"}  # host-device: everybody else gets DEVICE
DEVICE = "ens9"
TABLE = 7000
ROUTED = "routed"  # a host-device with routes that depend on one another, and on another device
BESIDE = "ens7"
RAIL = "rail"  # a macvlan on one rail of a group of two, which have one index
OTHER_RAIL = ("192.168.112.", "fd00:112::")
GATEWAY = "192.168.111.254"
LOCKS = "/run/railcni"  # the Kubernetes store's locks
_STORE_SECONDS = 5
_LOOKS, _SETTLE_SECONDS = 10, 0.02


@dataclass
class Attachment:
    """Somebody's interface: its container, its pod's name, its sandbox, the device that it asks for."""

    container: str
    pod: str
    sandbox: Pod
    device: str


class Scene:
    """`with Scene("macvlan", executables) as scene`. `first`: nothing has ever been attached, and nobody stands by.
    `known_good`: what is known to go well, so that it need not be gone through. `store`: where the leases are kept."""

    def __init__(
        self,
        plugin: str,
        executables: Path,
        first: bool = False,
        known_good: KnownGood | None = None,
        store: str = "file",
    ) -> None:
        self.kind = plugin
        self.plugin = {RAIL: "macvlan", ROUTED: "host-device"}.get(plugin, plugin)
        self.is_rail = plugin == RAIL
        self.store = store
        self.backing: Backing | None = None
        self.held: Trouble | None = None  # what is to happen to a request of the last call during the next one
        self.late_reservation = False  # a request for one has come after its call
        self.eyes: dump.Host | None = None
        self._seconds = _STORE_SECONDS
        self._known_good = known_good
        self.node = Node(executables)
        self._kept = -1  # a descriptor of the victim's namespace
        self._first = first
        self._whole = Whole(self.node)

    def __enter__(self) -> Scene:
        self.node.__enter__()
        try:
            self.backing = BACKINGS[self.store](self.node, NETWORK)
            self._furnish()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()
        self._whole.close()
        if self.eyes:
            self.eyes.close()
        if self.backing:
            self.backing.close()
        self.node.__exit__()

    def _furnish(self) -> None:
        views = {"host": self.node.host}
        devices.quieten(self.node.host)
        if self.plugin == "macvlan":
            views["wire"] = self.node.master(MASTER)
            devices.quieten(views["wire"], "peer")
            devices.identify(self.node.host, MASTER, "02:00:00:00:00:02")
            devices.identify(views["wire"], "peer", "02:00:00:00:01:02")
        else:
            self.wire = self.node.outside("wire")
            devices.quieten(self.wire)
            if self.kind == ROUTED:
                self.eyes = dump.Host(self.node.host)
                devices.make(self.node.host, self.wire, BESIDE)
            for name in (DEVICE, *DEVICES.values()):
                self.make_device(name)
        self.next = Attachment("next", "next", self.node.pod("next"), DEVICE)
        devices.quieten(self.next.sandbox.view)
        self.bystander: Attachment | None = None
        if (
            self._first or self.node.is_warm
        ):  # at first nothing stands in the place of the workers' directory (tests/node.py)
            warm.allow(self.node, int(self.node.is_warm))
        if not self._first:
            self.bystander = Attachment("bystander", "bystander", self.node.pod("bystander"), DEVICES["bystander"])
            devices.quieten(self.bystander.sandbox.view)
            self.call("ADD", self.bystander).succeeded()
        self.victim = Attachment("none", "victim", self.next.sandbox, DEVICE)
        directory = self.node.path(STATE)
        self._saved = {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
        self.backing.save()
        self._base = self.state()
        self._host = self.host()
        self._indices = self._indices_now()
        views |= {name: pod.view for name, pod in self.node.pods.items()}
        self._whole.keep(views)
        self._host_lines = self._whole.of("host")

    def make_device(self, name: str) -> None:
        """Make a device of the host, again when it was destroyed."""
        devices.make(self.node.host, self.wire, name)
        if self.kind == ROUTED and name == DEVICE:
            devices.route(self.node.host, DEVICE, BESIDE)

    # --- what a case begins with ---

    def renew(self) -> Attachment:
        """The state as at the beginning, and a victim that nobody has seen before."""
        directory = self.node.path(STATE)
        shutil.rmtree(directory, ignore_errors=True)
        if self._first:
            shutil.rmtree(directory.parent, ignore_errors=True)
            shutil.rmtree(self.node.path(LOCKS), ignore_errors=True)
        for lock in self.node.path(LOCKS).glob("pool-*"):
            lock.write_bytes(b"")  # it says when a patch was refused: other requests are made for a while then
        self.held = None
        self.late_reservation = False
        self.backing.restore()
        for name, data in self._saved.items():
            (directory / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / name).write_bytes(data)
            (directory / name).chmod(0o600)
        self.drop_sandbox()
        self.victim = Attachment("victim-1", "victim", self.node.pod("victim"), DEVICE)
        devices.quieten(self.victim.sandbox.view)
        return self.victim

    def _clear(self, pod: Pod) -> None:
        """Delete the macvlan links of a sandbox, which its end would do a moment later: the next victim has the same MAC."""
        if self.plugin == "macvlan":
            with pod.view.rtnl() as ipr:
                for link in ipr.get_links():
                    if link["index"] != 1:
                        ipr.link("del", index=link["index"])

    def tidy(self) -> bool:
        """Take back what a call has left, without looking at how; whether the next case meets what the first one met."""
        if self._whole.of("host") == self._host_lines:
            return True
        if self.host() != self._host or (self.plugin != "macvlan" and self.victim.sandbox.view.names()):
            self.call("DEL", self.victim)
        return self.host() == self._host and not self.is_worn()

    def is_worn(self) -> bool:
        """Whether the next case would not meet what the first one met: a device of the host was made again."""
        return self._indices_now() != self._indices

    def _indices_now(self) -> dict[str, tuple[int, int]]:
        with self.node.host.rtnl() as ipr:
            return {link.get("ifname"): (link["index"], link.get("link") or 0) for link in ipr.get_links()}

    def hide_sandbox(self) -> None:
        """The path of the victim's sandbox goes, and a descriptor of this process, which is not in it, keeps it."""
        pod = self.victim.sandbox
        with pod.view.entered():
            self._kept = os.open("/proc/thread-self/ns/net", os.O_RDONLY)  # not by its path: that would pin the mount
        self.node.delete_pod(pod)
        hidden = Pod(pod.name, pod.path, View(f"/proc/{os.getpid()}/fd/{self._kept}"))
        self.victim.sandbox = self.node.pods[pod.name] = hidden

    def _let_go(self) -> None:
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1

    def drop_sandbox(self, physical: bool = True) -> None:
        """The victim's sandbox goes. The kernel would give a `physical` device back to the host, under the pod's name,
        without its addresses; with a virtual one, as ours are, it is done by hand; else it is destroyed."""
        pod = self.node.pods.get("victim")
        if pod is None:
            return
        self._clear(pod)
        if self.plugin == "host-device" and physical:
            self._evict(pod)
        if self._kept >= 0:
            del self.node.pods[pod.name]
            self._let_go()
        else:
            self.node.delete_pod(pod)

    def _evict(self, pod: Pod) -> None:
        fd = os.open(self.node.host.path, os.O_RDONLY)
        try:
            for name in pod.view.names():
                taken = name in self.node.host.names()
                pod.view.set(name, state="down", net_ns_fd=fd, **({"ifname": "dev0"} if taken else {}))
        finally:
            os.close(fd)

    # --- calls ---

    def config(self, who: Attachment | None = None) -> dict[str, Any]:
        ranges = [{"range": "fd00:111::/64"}]
        ipam = {"type": "whereabouts", "range": "192.168.111.0/24", "ipRanges": ranges, **self.backing.config()}
        if self.backing.gate:
            ipam["store_timeout"] = self._seconds
        ipam["routes"] = [{"dst": "10.20.0.0/16", "gw": GATEWAY}]
        network: dict[str, Any] = {"cniVersion": "1.1.0", "name": NETWORK, "type": self.plugin, "ipam": ipam}
        if self.is_rail:
            ranges = [["192.168.111.0/24", "fd00:111::/64"], [f"{OTHER_RAIL[0]}0/24", f"{OTHER_RAIL[1]}/64"]]
            network["rail"] = {"index": 0, "group": NETWORK, "addressing": "same-index", "ranges": ranges}
        if self.plugin == "macvlan":
            return network | {"master": MASTER, "mtu": 9000}
        return network | {"device": who.device if who else DEVICE}

    def collection(self, valid: Sequence[Attachment] | None = None) -> dict[str, Any]:
        """The configuration of a GC that is told of `valid` alone; by default of the bystander."""
        if valid is None:
            valid = [self.bystander] if self.bystander else []
        listed = [{"containerID": who.container, "ifname": IFNAME} for who in valid]
        return self.config() | {"cni.dev/valid-attachments": listed}

    def command(self, verb: str, who: Attachment, valid: Sequence[Attachment] | None = None) -> Command:
        """The call as `strace` must be told it; a GC with its `valid` attachments."""
        environ = {"CNI_COMMAND": verb, "CNI_PATH": str(self.node.executables)}
        if verb != "GC":
            environ |= {"CNI_CONTAINERID": who.container, "CNI_IFNAME": IFNAME, "CNI_NETNS": who.sandbox.path}
            environ["CNI_ARGS"] = self._args(who)
        config = self.collection(valid) if verb == "GC" else self.config(who)
        return Command(self.node.executables / self.plugin, environ, json.dumps(config).encode())

    @contextmanager
    def patience(self, seconds: int) -> Iterator[None]:
        """How long a call waits for the server that keeps the leases, for as long as the block lasts."""
        before, self._seconds = self._seconds, seconds
        try:
            yield
        finally:
            self._seconds = before

    def call(self, verb: str, who: Attachment) -> Reply:
        reply = self.start(verb, who).finish()
        self._end_held()
        return reply

    def start(self, verb: str, who: Attachment) -> Call:
        named: dict[str, Any] = {
            "container_id": who.container, "ifname": IFNAME, "netns": who.sandbox.path, "args": self._args(who),
        }  # fmt: skip
        return self.node.start_cni(self.plugin, verb, self.config(who), path=[self.node.executables], **named)

    def collect(self, valid: Sequence[Attachment] | None = None) -> Reply:
        reply = self.node.cni(self.plugin, "GC", self.collection(valid), path=[self.node.executables])
        self._end_held()
        return reply

    def _end_held(self) -> None:
        held, self.held = self.held, None
        if held:
            held.next_is_over()

    @staticmethod
    def _args(who: Attachment) -> str:
        return f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={who.pod}"

    # --- what must be true ---

    def state(self) -> State:
        return state.read(self.node.path(STATE), self.backing.read())

    def host(self) -> dict[str, Any]:
        """Everything that a person would miss of the links of the host."""
        found = {name: lasting(link) for name, link in self.node.host.links().items()}
        return found | ({"everything": self._everything()} if self.eyes else {})

    def _everything(self) -> list[str]:
        """All that the routed device and the host have, but what the kernel makes by itself a moment after a link is up."""
        assert self.eyes
        kinds = ("address", "route", "rule", "neighbour", "sysctl")
        texts = [line.text for line in self.eyes.dump().lines if line.kind in kinds]
        return [text for text in texts if " fe80:" not in text and " ff00:" not in text and "proto 2 " not in text]

    def standing(self, who: Attachment) -> list[str]:
        """All that there is of an attachment."""
        pod = self.node.pods.get(who.sandbox.name)
        links = pod.view.names() if pod else []
        return self.state().of(who.container) + [f"link {name} in the sandbox" for name in links]

    def at_rest(self, outcome: Outcome, verb: str) -> list[str]:
        """What is wrong after a call that ended in any way, before anything else is called."""
        now = self.state()
        faults = outcome.faults + now.faults + now.late
        for who in filter(None, (self.victim, self.bystander)):
            faults += self._unguarded(who, now)
        if self.bystander:
            faults += self._disturbed(self.bystander, now)
        if outcome.reply and outcome.reply.status == 0:
            if verb == "ADD":
                faults += self.attached(self.victim, outcome.reply)
            elif verb == "DEL" and self.is_pending(now):
                faults += [f"DEL succeeded, but left link {name}" for name in self.victim.sandbox.view.names()]
            elif verb != "GC" or not outcome.met_a_lock() or not self._is_whole(now):  # else it seemed to be at work
                faults += [f"{verb} succeeded, but left {what}" for what in self.standing(self.victim)]
        return faults

    def is_pending(self, now: State) -> bool:
        """Whether the victim's release is left to be made by a later call: its server could not be reached."""
        return bool(self.backing.gate) and now.is_pending(self.victim.container)

    def _is_whole(self, now: State) -> bool:
        """Whether the victim has as much as the bystander."""
        there = now.of(self.bystander.container) if self.bystander else []
        return len(now.of(self.victim.container)) == len(there) and self.victim.sandbox.view.names() == [IFNAME]

    def _unguarded(self, who: Attachment, now: State) -> list[str]:
        """An address on a link that is not leased to it, and a link or lease without a link record."""
        links = who.sandbox.view.links() if who.sandbox.name in self.node.pods else {}
        on_wire = [text.split("/")[0] for link in links.values() for text in link.texts if link.up]
        leased = now.addresses(who.container)
        faults = [f"{a} is on the wire and not leased to {who.container}" for a in on_wire if a not in leased]
        if f"{NETWORK}:{who.container}:{IFNAME}:link" not in now.records:
            faults += [f"link {name} of {who.container} has no record" for name in links]
            if not self.backing.gate:  # a claim of which it is not known whether it was made is left to DEL
                faults += [f"{what} of {who.container} without a link record" for what in now.of(who.container)]
            if self.plugin == "host-device" and who is self.victim and self.host() != self._host:
                faults.append(f"a device of the host is not as it was, and there is no record: {self.changed()}")
        return faults

    def _disturbed(self, who: Attachment, now: State) -> list[str]:
        faults = []
        if now.of(who.container) != self._base.of(who.container):
            faults.append(f"the bystander has {now.of(who.container)}, had {self._base.of(who.container)}")
        faults += [what for what in now.unfinished if f" of {who.container} " in what]
        link = who.sandbox.view.links().get(IFNAME)
        held = [a for a in now.addresses(who.container) if not (self.is_rail and a.startswith(OTHER_RAIL))]
        if link is None or [a.split("/")[0] for a in sorted(link.texts)] != held:
            faults.append(f"the bystander's link is {link}")
        return faults

    def attached(self, who: Attachment, reply: Reply) -> list[str]:
        """What is missing of an attachment that ADD answered so: the link, its addresses, leases and records."""
        document = reply.succeeded()
        given = sorted(a["address"] for a in document["ips"])
        link = who.sandbox.view.links().get(IFNAME)
        faults = []
        if link is None or not link.up or sorted(link.texts) != given or not link.route("10.20.0.0/16"):
            faults.append(f"ADD gave {given}, and the link is {link}")
        elif (document["interfaces"][0]["mac"], document["interfaces"][0]["mtu"]) != (link.mac, link.mtu):
            faults.append(f"ADD told of {document['interfaces']}, and the link is {link}")
        now = self.state()
        held = [a.split("/")[0] for a in given]
        if self.is_rail:
            index = int(next(a for a in held if "." in a).rpartition(".")[2])
            held += [f"{OTHER_RAIL[0]}{index}", f"{OTHER_RAIL[1]}{index:x}"]
            faults += _unlike_a_rail(who, index)
        if now.addresses(who.container) != sorted(held):
            faults.append(f"ADD gave {given}, and leased are {now.addresses(who.container)}")
        faults += [what for what in now.unfinished if f" of {who.container} " in what]
        wanted = [f"{NETWORK}:{who.container}:{IFNAME}:{part}" for part in ("ipam", "link")]
        if self.is_rail:
            wanted[0] = f"@{NETWORK}:{who.container}:rails of {NETWORK}:ipam"
        found = [name for name in now.records if name.split(":")[1] == who.container]
        if found != wanted or who.sandbox.view.names() != [IFNAME]:
            faults.append(f"there are records {found} and links {who.sandbox.view.names()}")
        return faults

    def clean(self, late: bool = False) -> list[str]:
        """What differs from the beginning: leases, records, files, links of the host and of the sandboxes; but what a
        request may leave that came `late`."""
        now = self.state()
        faults = [*now.faults, *now.unfinished, *([] if late else now.late)]
        leased = [lease for lease in now.leases if lease not in self._base.leases]
        faults += [f"left: lease {lease.address} of {lease.container}" for lease in leased]
        faults += [f"lost: {lease}" for lease in self._base.leases if lease not in now.leases]
        faults += [f"left: record {name}" for name in now.records if name not in self._base.records]
        faults += [f"lost: record {name}" for name in self._base.records if name not in now.records]
        faults += [f"left: file {name}" for name in now.others]
        for who in (self.victim, self.next):
            pod = self.node.pods.get(who.sandbox.name)
            faults += [f"left: link {name} of {who.container}" for name in (pod.view.names() if pod else [])]
            faults += [f"left: rule {rule} of {who.container}" for rule in (rules(pod.view) if pod else [])]
        return faults + ([f"the host's links are not as they were: {self.changed()}"] if self.changed() else [])

    def is_well(self, what: str, check: Callable[[], list[str]]) -> list[str]:
        """What `check` finds; nothing, without calling it, when it found nothing in the same state before."""
        if self._known_good is None:
            return check()
        key = (what, self.kind, self.store, self._first, self.settled(self._known_good))
        if self._known_good.has(*key):
            return []
        faults = check()
        if not faults:
            self._known_good.add(*key)
        return faults

    def settled(self, known_good: KnownGood) -> str:
        """The fingerprint once the kernel's deferred work is done: local routes and multicast groups of an address, and
        the carrier, come some milliseconds after it. A state that was settled once is not waited for."""
        found = self.fingerprint()
        for _ in range(_LOOKS):
            if known_good.has("settled", found):
                break
            time.sleep(_SETTLE_SECONDS)
            before, found = found, self.fingerprint()
            if before == found:
                known_good.add("settled", found)
        return found

    def fingerprint(self) -> str:
        """A hash of all that whoever comes next can meet (tests.faults.whole)."""
        victim = self.node.pods.get("victim")
        lines = self._whole.lines(victim.view if victim else None, self.backing.lines())
        return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    def locks(self) -> list[str]:
        """The locks that somebody holds on a file of the state directory."""
        return self._whole.locks()

    def changed(self) -> list[str]:
        now, before = self.host(), self._host
        lines, known = now.pop("everything", []), before.get("everything", [])
        found = [
            line for line in difflib.unified_diff(known, lines, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
        ]
        return found + [
            f"{name}: {now.get(name)}, was {before.get(name)}"
            for name in sorted({*now, *before} - {"everything"})
            if now.get(name) != before.get(name)
        ]


def _unlike_a_rail(who: Attachment, index: int) -> list[str]:
    """What is missing of the routing of a rail."""
    wanted = sorted([(f"192.168.111.{index}", TABLE), (f"fd00:111::{index:x}", TABLE)])
    found = rules(who.sandbox.view)
    return [] if found == wanted else [f"the rules are {found}"]
