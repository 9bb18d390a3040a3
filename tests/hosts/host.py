"""A host of the matrix, made as its scene says, and the calls of one plugin on it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.blackbox.test_host_device import PCI, bus
from tests.faults import trace
from tests.faults.inject import Command, Injector, Outcome, finished
from tests.hosts import dump
from tests.hosts.router import PREFIXES, Router
from tests.hosts.scenes import DEVICE, HOST_DEVICE, OTHER, SCENES, Scene
from tests.node import Call, Node, Reply, until
from tests.view import View

NETWORK, IFNAME, CONTAINER = "hosts", "net1", "c1"
_RANGE = "192.168.111.0/24"
_FULL = "192.168.112.0/24"
_QUIET = ("accept_dad", "router_solicitations")  # set to 0
_SOLICITS = ("accept_dad", "router_solicitation_delay")
_ADDRESSES = ("ip addr add 10.3.0.2/24 dev ens3f0", "ip addr add fd00:3::2/64 dev ens3f0 nodad")
_STOPPED = "--- stopped by SIGSTOP"
_STOPPED_SECONDS = 120.0  # it hangs then: a guest that is emulated is slow


class Host:
    """`with Host(scene, plugin, node) as host`: the scene on a fresh node, a pod, and the dump before anything is done."""

    def __init__(self, scene: Scene, plugin: str, node: Node) -> None:
        self.scene, self.plugin, self.node = scene, plugin, node
        self.executable = "macvlan" if plugin.startswith("macvlan-") else plugin
        self.wires: list[View] = []  # of the network cards, when they are not a machine's own
        self.routers: list[Router] = []
        self._away = self._done = False
        self.told = ""  # what plugins have written to their log
        self.is_attached = False  # an ADD has succeeded

    def __enter__(self) -> Host:
        self.furnish()
        self.eyes = dump.Host(self.node.host)
        try:
            for name, wire, prefix in zip((DEVICE, OTHER)[: self.scene.routers], self.wires, PREFIXES, strict=False):
                self._route(name, wire, prefix)
            self.pod = self.node.pod()
            self.before = dump.settled(self.eyes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for router in self.routers:
            router.close()
        self.eyes.close()

    def furnish(self) -> None:
        """Two network cards, and what the scene says of them."""
        for key in _SOLICITS if self.scene.routers else _QUIET:
            self.node.host.set_sysctl(f"net/ipv6/conf/default/{key}", 0)
        self.wires = [self.node.master(name, mtu=9000) for name in (DEVICE, OTHER)]
        if self.scene.is_probed_anew:
            bus(self.node, "pci", PCI, DEVICE, driver="mlx5_core")
        self.set_up(*_ADDRESSES)

    def set_up(self, *addresses: str) -> None:
        """Run the commands that give the cards their addresses, and those of the scene."""
        commands = "\n".join([*addresses, self.scene.commands])
        done = self.node.run(["sh", "-e"], stdin=commands.encode())
        assert done.returncode == 0 and not done.stderr, (commands, done.stderr.decode())
        self.node.remember()

    def _route(self, name: str, wire: View, prefix: str) -> None:
        wire.add_address("peer", "fe80::1/64")  # which it has at once
        router = Router(wire, self.scene.router, prefix)
        self.routers.append(router)

        def heard() -> bool:
            if any(text.startswith(prefix.rstrip(":")) for text in self.node.host.link(name).texts):
                return True
            router.advertise()
            return False

        assert until(heard), "the host takes no address of the router's prefix"

    # --- calls ---

    def config(self, **ipam: Any) -> dict[str, Any]:
        block = {"type": "whereabouts", "range": _RANGE, "ipRanges": [{"range": "fd00:111::/64"}], "routes": [{"dst": "10.20.0.0/16", "gw": "192.168.111.254"}]}  # fmt: skip
        network = {"cniVersion": "1.1.0", "name": NETWORK, "type": self.executable, "ipam": block | ipam}
        return network | self._selected()

    def _selected(self) -> dict[str, Any]:
        if self.plugin == HOST_DEVICE:
            return {"pciBusID": PCI} if self.scene.is_probed_anew else {"device": self.scene.device}
        return {"master": self.scene.device, "mode": self.plugin.partition("-")[2]}

    def call(self, verb: str, config: dict[str, Any] | None = None) -> Reply:
        """Call the plugin, while the scene meddles."""
        config = config or self.config()
        if self.scene.meddling:
            outcome = self._meddled(self._command(verb, config))
            assert outcome.reply, f"{verb} gave no answer: {outcome.faults}"
            reply = outcome.reply
        else:
            attachment = {"container_id": CONTAINER, "ifname": IFNAME, "netns": self.pod}
            reply = self.node.cni(self.executable, verb, config, path=[self.node.executables], **attachment)
        if self.scene.is_probed_anew and verb == "ADD" and reply.status == 0:
            self._probe_anew()
        self.told += reply.stderr
        self.is_attached = self.is_attached or (verb == "ADD" and reply.status == 0)
        return reply

    def collect(self) -> Reply:
        """A GC whose list of valid attachments is empty."""
        return self.call("GC", self.config() | {"cni.dev/valid-attachments": []})

    def exhaust(self) -> dict[str, Any]:
        """Give the only address of a pool to somebody else; the configuration of a network that has that pool."""
        one = {"range": _FULL, "range_start": "192.168.112.1", "range_end": "192.168.112.1", "ipRanges": []}
        config = self.config(**one)
        other = {"container_id": "other", "ifname": IFNAME, "netns": "/dev/null"}
        self.node.cni("whereabouts", "ADD", config, path=["/"], **other).succeeded()
        self.node.remember()
        return config

    def killed(self, verb: str, point: str) -> Outcome:
        """Call the plugin and kill it at `point`, if it comes there."""
        with Injector(self.node) as injector:
            return finished(injector.start(self._command(verb, self.config()), "KILL", point))

    def points(self, verb: str) -> tuple[str, ...]:
        """The points of a call of `verb` at which something changes, as the scene `plain` has them: about as many as here."""
        return _points(self.plugin, verb, self.node.executables)

    def traced(self, verb: str) -> tuple[str, ...]:
        """The points of a call without a fault, which is made."""
        with Injector(self.node) as injector:
            outcome, text = injector.record(self._command(verb, self.config()), "-s", "64")
        assert outcome.reply and not outcome.reply.status, outcome
        return tuple(c.point for c in trace.parse(text) if trace.changes(c) and not trace.answers(c))

    def _command(self, verb: str, config: dict[str, Any]) -> Command:
        path = [self.node.executables]
        environ = self.node.environ(verb, container_id=CONTAINER, ifname=IFNAME, netns=self.pod, path=path)
        return Command(self.node.executables / self.executable, environ, json.dumps(config).encode())

    # --- what others do ---

    def end_sandbox(self) -> None:
        """The pod's namespace goes. The kernel gives a physical device back to the host, under the name that it has in
        the pod and without its addresses (net/core/dev.c, default_device_exit_net); with a virtual one, which it would
        destroy, that is done here."""
        for name in self.pod.view.names() if self.plugin == HOST_DEVICE else ():
            self.pod.view.move(name, self.node.host, state="down")
        self.node.delete_pod(self.pod)

    def _probe_anew(self) -> None:
        """Remove the device wherever it is, and give the host another one, which the dump then is of."""
        there = self.node.host if self.plugin != HOST_DEVICE else self.pod.view
        there.delete(DEVICE if self.plugin != HOST_DEVICE else IFNAME)
        self.node.master(DEVICE, mtu=9000)
        self.set_up()
        self.before = dump.settled(self.eyes)

    def _meddled(self, command: Command) -> Outcome:
        """Call the plugin, stopped after each request to the kernel, when the scene's other program has its turn."""
        with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
            trace = Path(folder, "trace")
            strace = [shutil.which("strace") or "strace", "-f", "-qq", "-o", trace, "-e", "trace=sendto,sendmsg"]
            strace += ["-e", "inject=sendto,sendmsg:signal=STOP:when=1+"]
            call = Call(self.node.start([*strace, command.executable], env=command.environ), b"")
            stdin = call.process.stdin
            assert stdin
            stdin.write(command.stdin)
            stdin.close()
            call.process.stdin = None
            seen, end = 0, time.monotonic() + _STOPPED_SECONDS
            while call.process.poll() is None:
                stops = [line for line in _lines(trace) if _STOPPED in line]
                for line in stops[seen:]:
                    self._meddle()
                    with suppress(ProcessLookupError):  # it was killed meanwhile
                        os.kill(int(line.split()[0]), signal.SIGCONT)
                seen = len(stops)
                assert time.monotonic() < end, "a plugin that is stopped again and again does not end"
                select.select([], [], [], 0.002)
            return finished(Call(call.process, None))  # type: ignore[arg-type]

    def _meddle(self) -> None:
        state, _, once = self.scene.meddling.partition(" ")
        home = self.scene.device in self.node.host.names()
        if once and (self._done or not (home and self._away)):
            self._away = self._away or not home
            return
        if home:
            self.node.host.set(self.scene.device, state=state)
            self._done = True


@cache
def _points(plugin: str, verb: str, executables: Path) -> tuple[str, ...]:
    with Node(executables) as node, Host(SCENES["plain"], plugin, node) as host:
        if verb == "DEL":
            host.call("ADD").succeeded()
        return host.traced(verb)


def _lines(path: Path) -> list[str]:
    """The whole lines of a file that is being written."""
    return path.read_text().splitlines() if path.exists() else []
