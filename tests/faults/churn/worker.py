"""One process that attaches, detaches and kills, as a runtime would that loses its patience and its memory.

It has pods and a network of its own; the range is everybody's. On stdin it reads for how many seconds it churns before it
rests; on 0 it detaches everything. What it did is in its file by then."""

import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.churn.events import DONE, KILLED, REFUSED, Dissolved, Event, Operation, line

IFNAME = "net1"
KILLED_OF_ALL = 0.3  # of the calls that may be killed
_CALL_SECONDS = 120


@dataclass
class Orders:
    """What a worker is told: all but `number` and `seed` is the same for all workers."""

    number: int
    seed: int
    executables: str
    pods: int
    file: str
    network: dict[str, Any]


@dataclass
class Pod:
    """A pod: its present sandbox ("" for none) and the one before; `held`: the last ADD was answered, and all is well."""

    name: str
    uid: int = 0
    sandbox: str = ""
    former: str = ""
    held: bool = False

    @property
    def owner(self) -> str:
        return f"{self.name}/{self.uid}"


@dataclass
class Running:
    """A call that has been started."""

    process: subprocess.Popen[bytes]
    verb: str
    container: str
    owner: str
    began: float
    spared: tuple[str, ...] = ()


class Worker:
    """The state of the process: its pods, and what it has noted."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._random = random.Random(orders.seed)
        self._network = {**orders.network, "name": f"churn-{orders.number}"}
        self._pods = [Pod(f"pod-{orders.number}-{k}") for k in range(orders.pods)]
        self._sandboxes = orders.number * 1_000_000
        self._took = {"ADD": 0.05, "DEL": 0.05, "GC": 0.05}
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._log = open(orders.file, "a", buffering=1 << 16)  # noqa: SIM115  # for as long as the process lives

    def serve(self) -> None:
        for command in sys.stdin:
            seconds = float(command)
            if seconds:
                self._churn(seconds)
            else:
                self._end()
            self._log.flush()
            print("rested", flush=True)

    def _churn(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pod = self._random.choice(self._pods)
            if not pod.sandbox:
                self._new_sandbox(pod)
                self._add(pod)
            elif pod.held:
                self._pick(
                    pod, (8, self._delete), (2, self._add), (2, self._restart), (2, self._vanish), (1, self._collect)
                )
            else:
                self._pick(
                    pod, (5, self._add), (4, self._delete), (1, self._vanish), (1, self._overlap), (1, self._collect)
                )

    def _pick(self, pod: Pod, *choices: tuple[int, Any]) -> None:
        weights, steps = zip(*choices, strict=True)
        self._random.choices(steps, weights)[0](pod)

    def _add(self, pod: Pod) -> None:
        pod.held = self._call("ADD", pod, pod.sandbox).outcome == DONE

    def _delete(self, pod: Pod) -> None:
        """DEL, and again when it was killed; then mostly the sandbox goes, as in a cluster."""
        pod.held = False
        if self._call("DEL", pod, pod.sandbox).outcome == DONE and self._random.random() < 0.8:
            self._dissolve(pod)
            if self._random.random() < 0.5:
                pod.uid += 1  # deleted and made again

    def _vanish(self, pod: Pod) -> None:
        """The sandbox goes without a DEL, which comes later, if at all."""
        pod.held = False
        self._dissolve(pod)
        if self._random.random() < 0.7:
            self._call("DEL", pod, pod.former)

    def _restart(self, pod: Pod) -> None:
        """A new sandbox in place of the old one, whose DEL comes late."""
        self._dissolve(pod)
        self._new_sandbox(pod)
        self._add(pod)
        if self._random.random() < 0.7:
            self._call("DEL", pod, pod.former)

    def _overlap(self, pod: Pod) -> None:
        """An ADD that takes too long for the runtime, which sends DEL while it runs."""
        adding = self._start("ADD", pod.sandbox, pod.owner)
        time.sleep(self._random.random() * self._took["ADD"])
        deleting = self._start("DEL", pod.sandbox, pod.owner)
        self._finish(adding)
        self._finish(deleting)

    def _collect(self, pod: Pod) -> None:
        """GC of the network, with the attachments that a runtime believes in, while an ADD of another pod may run."""
        valid = tuple(p.sandbox for p in self._pods if p.sandbox and p.held)
        if pod.held:
            self._finish(self._start("GC", "", "", valid))
            return
        calls: list[tuple[str, str, str, tuple[str, ...]]]
        calls = [("ADD", pod.sandbox, pod.owner, ()), ("GC", "", "", valid)]
        self._random.shuffle(calls)
        running = []
        for call in calls:
            running.append(self._start(*call))
            time.sleep(self._random.random() * self._took["ADD"] / 2)
        ended = [self._finish(started) for started in running]
        pod.held = any(o.verb == "ADD" and o.outcome == DONE for o in ended)

    def _end(self) -> None:
        """DEL of all, unhurried, of sandboxes that stand and of such as are gone; then GC of what nobody knows."""
        for pod in self._pods:
            if pod.sandbox:
                self._finish(self._start("DEL", pod.sandbox, pod.owner))
                self._dissolve(pod)
            pod.held = False
        self._finish(self._start("GC", "", "", ()))

    def _new_sandbox(self, pod: Pod) -> None:
        """A namespace, with an id by which the watcher hears of it; the container is named by the id."""
        self._sandboxes += 1
        pod.sandbox = str(self._sandboxes)
        path = Path("/run/netns", pod.sandbox)
        path.touch()
        subprocess.run(["unshare", f"--net={path}", "true"], check=True)
        with path.open() as namespace:
            attributes = struct.pack("=HHiHHi", 8, 1, self._sandboxes, 8, 3, namespace.fileno())
            self._netlink.send(struct.pack("=IHHIIB3x", 20 + len(attributes), 88, 5, 0, 0, 0) + attributes)
            (code,) = struct.unpack_from("=i", self._netlink.recv(1 << 16), 16)
        if code:
            raise OSError(-code, f"no id for sandbox {pod.sandbox}: {os.strerror(-code)}")

    def _dissolve(self, pod: Pod) -> None:
        self._note(Dissolved(pod.sandbox, time.monotonic()))
        path = f"/run/netns/{pod.sandbox}"
        subprocess.run(["umount", "--lazy", path], check=True)
        os.unlink(path)
        pod.former, pod.sandbox, pod.held = pod.sandbox, "", False

    def _call(self, verb: str, pod: Pod, container: str) -> Operation:
        """A call that is killed now and then, at any moment of what such calls take."""
        running = self._start(verb, container, pod.owner)
        if self._random.random() < KILLED_OF_ALL:
            try:
                running.process.wait(self._random.random() * 1.2 * self._took[verb])
            except subprocess.TimeoutExpired:
                running.process.send_signal(signal.SIGKILL)
        return self._finish(running)

    def _start(self, verb: str, container: str, owner: str, spared: tuple[str, ...] = ()) -> Running:
        network = self._network
        env = {"CNI_COMMAND": verb, "CNI_PATH": self._orders.executables}
        if verb == "GC":
            network = {**network, "cni.dev/valid-attachments": [{"containerID": c, "ifname": IFNAME} for c in spared]}
        else:
            name, _, uid = owner.partition("/")
            args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=churn;K8S_POD_NAME={name};K8S_POD_UID=uid-{uid}"
            env |= {"CNI_CONTAINERID": container, "CNI_IFNAME": IFNAME, "CNI_ARGS": args}
            env["CNI_NETNS"] = f"/run/netns/{container}"
        stdin = os.memfd_create("stdin")
        os.write(stdin, json.dumps(network).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        began = time.monotonic()
        process = subprocess.Popen(
            [f"{self._orders.executables}/macvlan"], env=env, stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(stdin)
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)  # type: ignore[arg-type]  # nobody reads until it ends
        return Running(process, verb, container, owner, began, spared)

    def _finish(self, running: Running) -> Operation:
        out, _ = running.process.communicate(timeout=_CALL_SECONDS)
        ended = time.monotonic()
        status = running.process.returncode
        answer = json.loads(out) if out.strip() and status >= 0 else {}
        outcome = KILLED if status < 0 else REFUSED if status else DONE
        if outcome == DONE:
            self._took[running.verb] = 0.8 * self._took[running.verb] + 0.2 * (ended - running.began)
        who = (running.verb, running.container, running.owner, self._network["name"], running.began, ended, outcome)
        addresses = tuple(a["address"].split("/")[0] for a in answer.get("ips", ()))
        operation = Operation(*who, addresses, answer.get("code", 0), answer.get("msg", ""), running.spared)
        self._note(operation)
        return operation

    def _note(self, event: Event) -> None:
        self._log.write(line(event) + "\n")


if __name__ == "__main__":
    Worker(Orders(**json.loads(sys.argv[1]))).serve()
