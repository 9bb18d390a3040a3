"""The plugins against a model that is plain dicts, by random calls in random order, on a node with a real kernel."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.faults import state, tree
from tests.faults.plugin_model import DEVICE, Answer, Model, Network
from tests.node import BIN, STATE, Node, Reply, unusable

MASTER, SUBNET = "ens2f0", "10.7.0.0"
NETWORKS = (  # the first two share addresses, the third has the same ones to itself
    Network("narrow", "net1", range=f"{SUBNET}/30"),
    Network("wide", "net2", range=f"{SUBNET}/29"),
    Network("apart", "net3", range=f"{SUBNET}/30", space="blue", overlap=False),
    Network("device", "net4", type="host-device", range="10.8.0.0/30"),
)
RANGES = {
    "narrow": (f"{SUBNET}/30", f"{SUBNET}/29", None), "wide": (f"{SUBNET}/29", f"{SUBNET}/28"),
    "apart": (f"{SUBNET}/30", "10.9.0.0/30"), "device": ("10.8.0.0/30", None),
}  # fmt: skip
_MOST_SANDBOXES = 5
_CLOCK_FILE = "/proc/sys/kernel/random/boot_id"

names = st.sampled_from([n.name for n in NETWORKS])
pods = st.sampled_from([("", ""), ("a", "1"), ("a", "2"), ("b", "")])
numbers = st.integers(0, 50)


class PluginMachine(RuleBasedStateMachine):
    """Calls of the plugins, of the runtime's and of the administrator's doing, on the node and in the model."""

    executables: ClassVar[Path] = BIN
    on_step: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    @initialize()
    def begin(self) -> None:
        self.node = Node(self.executables).__enter__()
        self.node.master(MASTER)
        self.model = Model(NETWORKS)
        self.results: dict[tuple[str, str], Any] = {}
        self.had: set[tuple[str, tuple[str, str], str]] = set()
        self.containers = 0
        self.make_device()
        self.start_boot()
        self.node.run(["mount", "--bind", "/run/boot_id", _CLOCK_FILE]).check_returncode()
        self.node.path("/run/uptime").write_text("5.00 5.00\n")  # each boot has just begun
        self.node.run(["mount", "--bind", "/run/uptime", "/proc/uptime"]).check_returncode()
        self.records = Records(str(self.node.path(STATE)))

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.__exit__()

    # --- sandboxes and the host ---

    @rule(pod=pods, name=names)
    @precondition(lambda self: len(self.model.sandboxes) < _MOST_SANDBOXES)
    def create(self, pod: tuple[str, str], name: str) -> None:
        """A pod that is attached to a network at once, as all are."""
        self.attach(name, self.new_sandbox(pod))

    @rule(number=numbers, uid=st.sampled_from((None, None, "", "1", "2")), stopped=st.booleans(), stale=st.booleans())
    @precondition(lambda self: self.model.records and len(self.model.sandboxes) < _MOST_SANDBOXES)
    def restart(self, number: int, uid: str | None, stopped: bool, stale: bool) -> None:
        """The pod of an attachment in a new sandbox, with the same uid or another one: then it is another pod. The old
        sandbox may be gone by then, and its DEL may come late."""
        name, former = self.one_of(sorted(self.model.records), number)
        if stopped and former in self.model.sandboxes:
            self.evict(former)
            self.model.vanish(former)
        pod, same = self.model.pods[former]
        self.attach(name, self.new_sandbox((pod, same if uid is None else uid)))
        if stale:
            self.detach(name, former)

    def new_sandbox(self, pod: tuple[str, str]) -> str:
        self.containers += 1
        container = f"c{self.containers}"
        self.node.pod(container)
        self.model.create(container, pod)
        return container

    @rule(number=numbers)
    @precondition(lambda self: self.model.sandboxes)
    def vanish(self, number: int) -> None:
        container = self.one_of(sorted(self.model.sandboxes), number)
        self.evict(container)
        self.model.vanish(container)

    @rule()
    @precondition(lambda self: self.model.records)
    def reboot(self) -> None:
        for container in self.model.sandboxes:
            self.evict(container)
        for name in self.node.host.names():
            if name not in (MASTER, f"{DEVICE}-peer"):
                self.node.host.delete(name)
        self.model.reboot()
        self.make_device()
        self.start_boot()

    def evict(self, container: str) -> None:
        """The namespace goes. A physical device would come to the host by itself; a virtual one is moved by hand."""
        sandbox = self.model.sandboxes[container]
        pod = self.node.pods[container]
        host = os.open(self.node.host.path, os.O_RDONLY)
        try:
            for ifname, (kind, _, _) in sandbox.links.items():
                if kind == "host-device":
                    pod.view.set(ifname, state="down", net_ns_fd=host)
        finally:
            os.close(host)
        self.node.delete_pod(pod)

    def make_device(self) -> None:
        self.node.host.add_veth(DEVICE, f"{DEVICE}-peer", mtu=1600)

    def start_boot(self) -> None:
        self.node.path("/run/boot_id").write_text(f"00000000-0000-4000-8000-{self.model.boot:012}\n")

    # --- the administrator ---

    @rule(name=names, what=st.sampled_from(("range", "mtu", "type")), which=numbers)
    def reconfigure(self, name: str, what: str, which: int) -> None:
        """Another range, or no addresses from now on; another MTU; macvlan for host-device or the other way round."""
        kinds = ("macvlan", "host-device") if name in ("device", "wide") else ("macvlan",)
        value = self.one_of({"range": RANGES[name], "mtu": (1400, 1500), "type": kinds}[what], which)
        self.model.change(self.model.changed(name, **{what: value}))

    # --- verbs ---

    @rule(name=names, number=numbers)
    @precondition(lambda self: self.model.sandboxes)
    def add(self, name: str, number: int) -> None:
        self.attach(name, self.one_of(sorted(self.model.sandboxes), number))

    @rule(number=numbers)
    @precondition(lambda self: self.model.sandboxes)
    def add_to_all_networks(self, number: int) -> None:
        for network in NETWORKS:
            self.attach(network.name, self.one_of(sorted(self.model.sandboxes), number))

    @rule(number=numbers)
    @precondition(lambda self: self.model.records)
    def add_again(self, number: int) -> None:
        """The same attachment, whatever has become of its network or sandbox."""
        self.attach(*self.one_of(sorted(self.model.records), number))

    @rule(number=numbers)
    @precondition(lambda self: self.model.records)
    def delete(self, number: int) -> None:
        """Also of an attachment whose sandbox, configuration or address is gone: a stale DEL."""
        self.detach(*self.one_of(sorted(self.model.records), number))

    @rule(name=names, number=numbers)
    @precondition(lambda self: self.model.pods)
    def delete_any(self, name: str, number: int) -> None:
        """Of a container that may never have been in this network."""
        self.detach(name, self.one_of(sorted(self.model.pods), number))

    @rule()
    @precondition(lambda self: self.model.records)
    def look(self) -> None:
        """CHECK of all attachments, with the results of their ADDs, and STATUS of the networks."""
        for name, container in sorted(key for key in self.results if key in self.model.records):
            expected = self.model.check(name, container)
            config = {**self.config(name), "prevResult": self.results[name, container]}
            self.answered(self.call("CHECK", name, container, config), expected)
        for name, network in self.model.networks.items():
            if network.type == "macvlan":
                expected = self.model.status(name)
                self.answered(self.node.cni("macvlan", "STATUS", self.config(name), path=[self.executables]), expected)

    @rule(name=names, valid=st.integers(0, 255), locked=st.integers(0, 255) | st.just(0))
    @precondition(lambda self: self.model.records)
    def collect(self, name: str, valid: int, locked: int) -> None:
        """GC with some of the attachments in the list, and a running call on some of the others."""
        containers = sorted(container for network, container in self.model.records if network == name)
        listed = [c for i, c in enumerate(containers) if valid >> i & 1]
        busy = [c for i, c in enumerate(containers) if locked >> i & 1]
        ifname = self.model.networks[name].ifname
        attachments = [{"containerID": c, "ifname": ifname} for c in listed]
        config = {**self.config(name), "cni.dev/valid-attachments": attachments}
        expected = self.model.collect(name, listed, busy)
        held = [self.records.locked(Attachment(name, c, ifname), "link") for c in busy]
        try:
            reply = self.node.cni(self.model.networks[name].type, "GC", config, path=[self.executables])
        finally:
            for lock in held:
                lock.__exit__(None, None, None)
        self.answered(reply, expected)

    def attach(self, name: str, container: str) -> None:
        expected = self.model.add(name, container)
        reply = self.call("ADD", name, container, self.config(name))
        self.answered(reply, expected)
        if reply.status == 0:
            given = [a.split("/")[0] for a in reply.addresses] if "ips" in reply.document else []
            assert len(given) == bool(expected.addresses), (given, expected)
            if given:
                had = (name, self.model.pods[container][0], given[0])  # the node prefers what the pod has released
                assert given[0] in expected.addresses or had in self.had, (given, expected)
                self.had.add(had)
            self.model.added(name, container, given[0] if given else "")
            self.results[name, container] = reply.document

    def detach(self, name: str, container: str) -> None:
        expected = self.model.delete(name, container)
        self.answered(self.call("DEL", name, container, self.config(name)), expected)

    def call(self, verb: str, name: str, container: str, config: dict[str, Any]) -> Reply:
        network = self.model.networks[name]
        pod, uid = self.model.pods[container]
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID={uid}"
        named = {"container_id": container, "ifname": network.ifname, "netns": f"/run/netns/{container}", "args": args}
        return self.node.cni(network.type, verb, config, path=[self.executables], **named)

    def config(self, name: str) -> dict[str, Any]:
        network = self.model.networks[name]
        config: dict[str, Any] = {"cniVersion": "1.1.0", "name": name, "type": network.type, "mtu": network.mtu}
        config |= {"master": MASTER} if network.type == "macvlan" else {"device": DEVICE}
        if network.range:
            config["ipam"] = {"type": "whereabouts", "datastore": "file", "range": network.range}
            config["ipam"] |= {"network_name": network.space, "enable_overlapping_ranges": network.overlap}
        return config

    @staticmethod
    def answered(reply: Reply, expected: Answer) -> None:
        assert reply.code in expected.codes, (reply.code, reply.msg, expected)

    @staticmethod
    def one_of(things: Any, number: int) -> Any:
        return things[number % len(things)]

    # --- what must be true ---

    @invariant()
    def the_node_is_what_the_model_says(self) -> None:
        if not hasattr(self, "node"):
            return
        type(self).on_step()
        model = self.model
        now = state.read(self.node.path(STATE))
        found = [(x.pool, x.address, x.network, x.container, x.ifname) for x in now.leases]
        assert sorted(found) == sorted((x.pool, x.address, *x.key, x.ifname) for x in model.leases)
        ifnames = {n.name: n.ifname for n in NETWORKS}
        parts = [
            (key, part) for key, r in model.records.items() for part in ("link", "ipam") if part == "link" or r.ipam
        ]
        assert sorted(now.records) == sorted(f"{k[0]}:{k[1]}:{ifnames[k[0]]}:{part}" for k, part in parts)
        assert (now.others, now.faults) == ([], [])
        for name, sandbox in model.sandboxes.items():
            links = self.node.pods[name].view.links().values()
            there = {x.name: ("macvlan" if x.kind == "macvlan" else "host-device", x.mtu, *x.texts) for x in links}
            wanted = {i: tuple(filter(None, facts)) for i, facts in sandbox.links.items()}
            assert there == wanted, (name, there, wanted)
            assert all(x.up for x in links)
        assert set(self.node.host.names()) == {MASTER, f"{DEVICE}-peer", model.device} - {""}


def run(executables: Path, examples: int, steps: int, shrink: bool = False) -> int:
    """Run the machine: at most `examples` nodes with `steps` calls each; how many steps were checked; AssertionError."""
    count = 0

    def counting() -> None:
        nonlocal count
        count += 1

    machine: Any = type("Machine", (PluginMachine,), {"executables": executables, "on_step": staticmethod(counting)})
    case = machine.TestCase()
    case.settings = settings(
        max_examples=examples, stateful_step_count=steps,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,), deadline=None,
        suppress_health_check=list(HealthCheck), database=None,
    )  # fmt: skip
    case.runTest()
    return count


def main(arguments: Sequence[str]) -> int:
    """Run for some seconds (60), and say how many steps that were; 1 when a step was wrong, which it prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.plugin_machine", description=main.__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    seconds = parser.parse_args(arguments).seconds
    if why := unusable():
        print(why, file=sys.stderr)
        return 2
    began, steps = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="machine-") as folder:
        executables = tree.copy(Path(folder))
        while time.monotonic() < began + seconds:
            steps += run(executables, examples=4, steps=50, shrink=True)
            print(f"machine: {steps} steps in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
