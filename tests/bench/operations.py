"""What is done on each side in a round, and how the rounds alternate."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netns import open_namespace, own
from tests.bench.calls import Call, Failed, Running, peak_kib, timed
from tests.bench.progress import Progress
from tests.bench.samples import Operation, Results, Sample
from tests.bench.scenarios import AT_ONCE, INTERPRETER, MOVE, OURS, SCENARIOS, Scenario, Side, ipam_group
from tests.bench.workers import Workers
from tests.node import Pod

WARM_UP = 2  # rounds of each part that do not count

Round = dict[Operation, Sample]


class Named(Protocol):
    """What is measured beside others."""

    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=Named)


def alternately(
    results: Results,
    progress: Progress,
    what: str,
    sides: Sequence[S],
    rounds: int,
    call: Callable[[S, int], Round],
    warm_up: int = WARM_UP,
) -> None:
    """`call(side, number)` for each side in each round, in an order that changes. A side that fails is left out from
    there on, and the failure is noted."""
    remaining = list(sides)
    if not remaining:
        return
    for number in progress.track(what, rounds + warm_up):
        for side in random.sample(remaining, len(remaining)):
            try:
                found = call(side, number)
            except Failed as fault:
                results.failures.append(f"{side.name}, {what}: {fault}")
                remaining.remove(side)
                continue
            if number >= warm_up:
                for operation, sample in found.items():
                    results.add(operation, side.name, sample)


def attachment(
    scenario: Scenario, pod: Pod, side: Side, number: int, measure: Callable[[Call], tuple[Any, bytes]] = timed
) -> dict[Operation, Any]:
    """An ADD, and what follows it in the life of an attachment; VERSION before it when the scenario has that.

    `measure` makes a call, and answers what is noted of it and its stdout.
    """
    add = link_call(scenario, side, "ADD", pod, f"c{number}")
    found: dict[Operation, Any] = {}
    if "VERSION" in scenario.verbs:
        version = Call(add.argv, "VERSION", b"", add.container, add.netns, add.path)
        found[Operation(scenario.group, "VERSION")], _ = measure(version)
    prepare(scenario, side)
    try:
        found[Operation(scenario.group, "ADD")], result = measure(add)
        for verb in ("CHECK", "DEL"):
            later = link_call(scenario, side, verb, pod, add.container, result)
            found[Operation(scenario.group, verb)], _ = measure(later)
    except Failed:
        _clear([link_call(scenario, side, "DEL", pod, add.container)])
        raise
    return found


def _clear(deletes: Sequence[Call]) -> None:
    """Call DEL after a failure, so that it stays the only one."""
    for call in deletes:
        try:
            timed(call)
        except Failed:
            pass


def link_call(scenario: Scenario, side: Side, verb: str, pod: Pod, container: str, result: bytes | None = None) -> Call:
    """A call of the link plugin; `result` is what its ADD answered."""
    previous = {"prevResult": json.loads(result)} if result else {}
    executable = side.executable(scenario.plugin)
    config, cold = scenario.config(side, **previous), scenario.cold and side.name == OURS
    return Call([executable], verb, config, container, pod.path, side.path, cold=cold, caller=scenario.caller)


def prepare(scenario: Scenario, side: Side) -> None:
    """Set the device of a host-device up, as a node's devices are; Go's DEL leaves it down."""
    if scenario.plugin == "host-device":
        _set_up(side.device)


def _set_up(name: str) -> int:
    """Set a netdev of the node up; its index."""
    host = Rtnl()
    link = host.link(name=name)
    assert link, f"{name} is not on the host"
    host.change_link(link.index, up=True)
    host.close()
    return int(link.index)


def at_once(pods: Sequence[Pod], workers: Workers, side: Side, number: int) -> Round:
    """ADDs of all pods, started before one is waited for, then so the DELs: the time until the last one is done."""
    scenario = SCENARIOS[0]
    found = {}
    for verb in ("ADD", "DEL"):
        calls = [link_call(scenario, side, verb, pod, f"{pod.name}-{number}") for pod in pods]
        before = workers.cpu_ms()
        began = time.perf_counter()
        running = [Running(call) for call in calls]
        faults, cpu_ms = [], 0.0
        for each in running:
            try:
                sample, _, _ = each.finish()
                cpu_ms += sample.cpu_ms or 0.0
            except Failed as fault:
                faults.append(fault)
        if faults:
            _clear([link_call(scenario, side, "DEL", pod, f"{pod.name}-{number}") for pod in pods])
            raise faults[0]
        took = (time.perf_counter() - began) * 1e3
        found[Operation(AT_ONCE, verb)] = Sample(took, cpu_ms + workers.since(before))
    return found


def addresses(leases: Sequence[int], workers: Workers, side: Side, number: int) -> Round:
    """ADD and DEL of the IPAM plugin alone, in the pools with so many leases."""
    found = {}
    for size in random.sample(leases, len(leases)):
        for verb in ("ADD", "DEL"):
            executable = side.executable(side.pool_plugin)
            call = Call([executable], verb, side.full_pool(size), f"i{number}", "/dev/null", side.path)
            found[Operation(ipam_group(size), verb)], _ = workers.timed(call)
    return found


def move(pod: Pod, side: Side) -> Round:
    """The least that host-device must do: one message of a process that runs already moves the side's netdev to `pod`.

    The way back is not measured.
    """
    index = _set_up(side.device)
    with open_namespace(pod.path) as there, own() as here:
        host = Rtnl()
        with there.entered():
            box = Rtnl()
        began = time.perf_counter()
        host.change_link(index, netns_fd=there.fd)
        sample = Sample((time.perf_counter() - began) * 1e3)
        moved = box.link(name=side.device)
        assert moved
        box.change_link(moved.index, netns_fd=here.fd)
        host.close()
        box.close()
    return {MOVE: sample}


def interpreter(argv: Sequence[str]) -> Round:
    """The least that any exec of Python takes."""
    sample, _ = timed(Call([*argv, "-c", ""], "", b"", "", "", ""))
    return {INTERPRETER: sample}


def memory(results: Results, scenario: Scenario, pod: Pod, side: Side, number: int) -> Round:
    """Note the peak memory of an ADD."""
    prepare(scenario, side)
    add = link_call(scenario, side, "ADD", pod, f"m{number}")
    delete = link_call(scenario, side, "DEL", pod, add.container)
    try:
        peak = peak_kib(add)
        timed(delete)
    except Failed:
        _clear([delete])
        raise
    if number >= WARM_UP:
        results.memory_kib.setdefault(scenario.group, {}).setdefault(side.name, []).append(peak)
    return {}
