"""What is done to the victim, and how a runtime may go on after a plugin was killed or failed.

Every continuation ends with nothing left of the victim and with another attachment that works.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.faults.backing import KubernetesBacking
from tests.faults.inject import KILL
from tests.faults.scene import DEVICE, ROUTED, Attachment, Scene
from tests.faults.state import State
from tests.node import until


@dataclass(frozen=True)
class Operation:
    """A call to be disturbed. `first`: it is the first on the node, so that directories and files are made. `kept`: the
    path of the victim's namespace is gone, and a descriptor of another process keeps it, as thick Multus does. `faults`:
    those that it is disturbed by; () for all."""

    name: str
    plugin: str
    verb: str
    first: bool = False
    store: str = "file"
    kept: bool = False
    faults: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, str, bool]:
        """What its scene depends on."""
        return self.plugin, self.store, self.first

    def prepare(self, scene: Scene) -> Attachment:
        """The state that the call finds."""
        victim = scene.renew()
        if self.verb != "ADD":
            scene.call("ADD", victim).succeeded()
        if self.kept:
            scene.hide_sandbox()
        return victim


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("macvlan-first-add", "macvlan", "ADD", first=True),
        Operation("macvlan-add", "macvlan", "ADD"),
        Operation("macvlan-del", "macvlan", "DEL"),
        Operation("macvlan-gc", "macvlan", "GC"),
        *(
            Operation(f"{store}-macvlan-{name}", "macvlan", verb, name == "first-add", store)
            for store in ("etcd", "kubernetes", "addresslease")
            for name, verb in (("first-add", "ADD"), ("add", "ADD"), ("del", "DEL"), ("gc", "GC"))
        ),
        *(
            Operation(f"{prefix}rail-{name}", "rail", verb, store=store)
            for store, prefix in (
                ("file", ""), ("etcd", "etcd-"), ("kubernetes", "kubernetes-"), ("addresslease", "addresslease-"),
            )
            for name, verb in (("add", "ADD"), ("del", "DEL"), ("gc", "GC"))
        ),
        Operation("host-device-add", "host-device", "ADD"),
        Operation("host-device-del", "host-device", "DEL"),
        Operation("host-device-gc", "host-device", "GC"),
        *(
            Operation(f"kept-{plugin}-{verb.lower()}", plugin, verb, kept=True)
            for plugin in ("macvlan", "host-device")
            for verb in ("DEL", "GC")
        ),
        Operation("routed-add", ROUTED, "ADD", faults=(KILL, "EIO")),
        Operation("routed-del", ROUTED, "DEL", faults=(KILL, "EIO")),
    )
}  # fmt: skip


def retry(scene: Scene) -> list[str]:
    """The same ADD again, then DEL."""
    before = scene.state()
    kept = before.addresses(scene.victim.container)
    reply = scene.call("ADD", scene.victim)
    faults = scene.attached(scene.victim, reply)
    given = scene.state().addresses(scene.victim.container)
    if not _keeps(scene, kept, given, before):
        faults.append(f"the retried ADD gave {given}, and the attachment had {kept}")
    scene.call("DEL", scene.victim).succeeded()
    return faults + _over(scene)


def _keeps(scene: Scene, kept: list[str], given: list[str], before: State) -> bool:
    """Whether an attachment that had `kept` may have been `given` that: the same, or the rest of a claim besides; after
    a DEL whose release is pending anything."""
    return (
        not kept or given == kept or scene.is_pending(before) or (not scene.backing.atomic and set(kept) <= set(given))
    )


def delete(scene: Scene) -> list[str]:
    """DEL, DEL."""
    scene.call("DEL", scene.victim).succeeded()
    faults = [f"the first DEL has left {what}" for what in scene.standing(scene.victim)]
    scene.call("DEL", scene.victim).succeeded()
    return faults + _over(scene)


def collect_gone(scene: Scene) -> list[str]:
    """The sandbox is deleted; then GC."""
    scene.drop_sandbox()
    scene.collect().succeeded()
    return _over(scene)


def collect(scene: Scene) -> list[str]:
    """GC, with the sandbox still there."""
    scene.collect().succeeded()
    return _over(scene)


def other(scene: Scene) -> list[str]:
    """Another pod first: it gets no address that is still on the wire, and no device that is still held; then DEL of
    the victim, which takes nothing from the other."""
    on_wire = {text for link in scene.victim.sandbox.view.links().values() for text in link.texts}
    reply = scene.call("ADD", scene.next)
    faults: list[str] = []
    if reply.code == 11 and scene.plugin == "host-device":
        if not scene.state().of(scene.victim.container):
            faults.append(f"nobody has the device, and it is refused: {reply.msg}")
        if scene.victim.container not in reply.msg:
            faults.append(f"the holder is not named: {reply.msg}")
    else:
        faults += scene.attached(scene.next, reply)
        faults += [
            f"{a['address']} was given and is on the wire" for a in reply.document["ips"] if a["address"] in on_wire
        ]
    scene.call("DEL", scene.victim).succeeded()
    if reply.status == 0:
        faults += [f"after the victim's DEL: {fault}" for fault in scene.attached(scene.next, reply)]
    scene.call("DEL", scene.next).succeeded()
    return faults + _over(scene, reply.addresses if reply.status == 0 else ())


def restart(scene: Scene) -> list[str]:
    """The pod gets a new sandbox, and keeps its addresses; the DEL of the old one comes late, and takes nothing."""
    before = scene.state()
    kept = before.addresses(scene.victim.container)
    again = Attachment(scene.victim.container + "-b", scene.victim.pod, scene.next.sandbox, DEVICE)
    reply = scene.call("ADD", again)
    faults = scene.attached(again, reply)
    given = scene.state().addresses(again.container)
    if not _keeps(scene, kept, given, before):
        faults.append(f"the restarted pod got {given}, and had {kept}")
    scene.call("DEL", scene.victim).succeeded()
    faults += [f"after the late DEL: {fault}" for fault in scene.attached(again, reply)]
    scene.call("DEL", again).succeeded()
    return faults + _over(scene)


def flush(scene: Scene) -> list[str]:
    """DEL while the store cannot be reached, then `railcni ipam flush`. Without a record nothing is leased but in an IPPool."""
    gate = scene.backing.gate
    assert gate
    is_pool = type(scene.backing) is KubernetesBacking and not scene.is_rail
    owes = is_pool or bool(scene.state().addresses(scene.victim.container))
    gate.close()
    with scene.patience(1):
        scene.call("DEL", scene.victim).succeeded()
    gate.open()
    faults = [f"DEL has left link {name}" for name in scene.victim.sandbox.view.names()]
    if owes and not scene.is_pending(scene.state()):
        faults.append("nothing tells of the release that is still to be made")
    done = scene.node.railcni("ipam", "flush")
    if done.returncode:
        faults.append(f"flush failed: {done.stderr.decode()[-300:]}")
    return faults + _over(scene)


def _over(scene: Scene, released: Sequence[str] = ()) -> list[str]:
    """What is left of the case; and whether the next ADD works, and gets the lowest address or those that it `released`."""
    return scene.is_well("over", lambda: _wrong(scene, released))


def _wrong(scene: Scene, released: Sequence[str]) -> list[str]:
    faults = scene.clean(scene.late_reservation)
    reply = scene.call("ADD", scene.next)
    faults += scene.attached(scene.next, reply)
    number = 2 if scene.bystander else 1
    lowest = [f"192.168.111.{number}/24", f"fd00:111::{number}/64"]
    if faults == [] and sorted(reply.addresses) not in (lowest, sorted(released)):
        faults.append(f"the next ADD got {reply.addresses}")
    scene.call("DEL", scene.next).succeeded()
    return faults + [f"after the next ADD and DEL: {fault}" for fault in scene.clean()]


def vanish(scene: Scene) -> list[str]:
    """The sandbox is deleted, and a virtual device that was in it with it; then GC. It is made again afterwards."""
    inside = scene.victim.sandbox.view.names()
    scene.drop_sandbox(physical=False)
    if inside:
        until(lambda: f"{DEVICE}-peer" not in scene.wire.names())
    scene.collect().succeeded()
    if inside:
        scene.make_device(DEVICE)
    return _over(scene)


_ALWAYS = (retry, delete, collect_gone, collect, other)


def continuations(operation: Operation) -> dict[str, Callable[[Scene], list[str]]]:
    """The ways to go on after `operation`, by name."""
    always = [way for way in _ALWAYS if not (operation.kept and way is retry)]  # there is no sandbox for an ADD
    ways = (*always, vanish if operation.plugin in ("host-device", ROUTED) else restart)
    return {step.__name__: step for step in (ways if operation.store == "file" else (*ways, flush))}
