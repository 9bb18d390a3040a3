"""The scene of `make faults` with devices of a card in place of veth ends: in the guest, not in a node of its own, since
the kernel gives a device whose namespace has gone to the first namespace, and to no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults import cases, trace
from tests.faults.inject import KILL, Injector
from tests.faults.scene import DEVICE, DEVICES, Attachment, Scene
from tests.faults.trace import Call
from tests.lab import pci
from tests.lab.machine import Machine

WAYS: Mapping[str, Callable[[Scene], list[str]]] = {
    step.__name__: step for step in (cases.retry, cases.delete, cases.collect_gone, cases.collect, cases.other)
}


class VfScene(Scene):
    """`with VfScene(executables, addresses) as scene`: `addresses` are the PCI addresses of two functions."""

    def __init__(self, executables: Path, addresses: Sequence[str]) -> None:
        super().__init__("host-device", executables)
        self.node = Machine(executables)
        self._whole._node = self.node
        self._addresses = dict(zip((DEVICE, *DEVICES.values()), addresses, strict=True))

    def make_device(self, name: str) -> None:
        pci.furnish(self.node.host, self._addresses[name], name, int(name[-1]))

    def config(self, who: Attachment | None = None) -> dict[str, Any]:
        found = super().config(who)
        return found | {"runtimeConfig": {"deviceID": self._addresses[found.pop("device")]}}

    def renew(self) -> Attachment:
        victim = super().renew()
        if self.changed():  # after a failure
            self.make_device(DEVICE)
        return victim

    def drop_sandbox(self, physical: bool = True) -> None:
        """The victim's sandbox goes, and the kernel gives its device back to the host, under the pod's name."""
        pod = self.node.pods.get("victim")
        if pod:
            self.node.delete_pod(pod)
            pci.wait_for_netdev(self._addresses[DEVICE])

    def points(self, verb: str) -> list[Call]:
        """Where a kill is worth while: the calls of a run without a fault that change something, and its end."""
        with Injector(self.node) as injector:
            victim = self.prepare(verb)
            outcome, text = injector.record(self.command(verb, victim), "-s", "256")
            faults = self.at_rest(outcome, verb)
        assert outcome.reply and outcome.reply.status == 0 and not faults, (outcome, faults)
        self.call("DEL", victim).succeeded()
        calls = trace.parse(text)
        assert not trace.unknown(calls), trace.unknown(calls)
        return [c for c in calls if trace.changes(c)] + trace.last(calls)

    def prepare(self, verb: str) -> Attachment:
        """The state that a call of `verb` finds."""
        victim = self.renew()
        if verb != "ADD":
            self.call("ADD", victim).succeeded()
        return victim

    def kill(self, verb: str, point: Call, way: str) -> list[str]:
        """What is wrong when the plugin is killed at `point`, and the runtime goes on by `way`."""
        with Injector(self.node) as injector:
            victim = self.prepare(verb)
            outcome = injector.strike(self.command(verb, victim), KILL, point.point)
            if outcome.hit is None or outcome.hit.alike() != point.alike():
                return [f"another call is at this point now: {outcome.hit}"]
            return self.at_rest(outcome, verb) + WAYS[way](self)
