"""The watcher hears what the kernel did, in its order, and what it cannot know it does not say; however late it reads."""

import errno
import os
import time
from collections.abc import Iterator

import pytest

from tests.faults.churn import watcher as watching
from tests.faults.churn.checker import check
from tests.faults.churn.events import DONE, Event, Operation
from tests.faults.churn.run import MASTER, network
from tests.faults.churn.watcher import Watcher
from tests.node import Node, Pod, until, unusable
from tests.view import View

pytestmark = pytest.mark.skipif(bool(unusable()), reason=unusable())

SANDBOX, OTHER, THIRD = "1000001", "1000002", "1000003"
X, Y = "192.168.7.1", "192.168.7.2"


@pytest.fixture
def watcher(node: Node) -> Iterator[Watcher]:
    node.master(MASTER)
    with Watcher(node.host) as found:
        yield found


def sandbox(node: Node, name: str) -> Pod:
    """A sandbox that the node knows by its name as id."""
    pod = node.pod(name)
    give_id(node.host, pod, int(name))
    return pod


def give_id(where: View, pod: Pod, number: int) -> None:
    with where.rtnl() as ipr, open(pod.view.path) as namespace:
        ipr.set_netnsid(nsid=number, fd=namespace.fileno())


def call(node: Node, verb: str, pod: Pod) -> Operation:
    began = time.monotonic()
    reply = node.cni("macvlan", verb, {**network(), "name": "net"}, container_id=pod.name, netns=pod)
    reply.succeeded()
    given = tuple(a.partition("/")[0] for a in reply.addresses) if verb == "ADD" else ()
    return Operation(verb, pod.name, "pod", "net", began, time.monotonic(), DONE, given)


def test_an_address_that_came_and_went_while_nothing_was_read_is_not_held_against_an_earlier_del(
    node: Node, watcher: Watcher
) -> None:
    pod = sandbox(node, SANDBOX)
    events: list[Event] = []
    for verb in ("ADD", "DEL"):
        events.append(call(node, verb, pod))
        watcher.watch(0)
    events += [call(node, verb, pod) for verb in ("ADD", "DEL")]
    watcher.watch(0)
    assert [s.present for s in watcher.sights if s.address == X] == [True, False, True, False]
    assert check([*watcher.sights, *events]) == []


def test_a_link_that_stands_when_del_is_answered_is_found_however_late_its_end_is_read(
    node: Node, watcher: Watcher
) -> None:
    pod = sandbox(node, SANDBOX)
    events: list[Event] = [call(node, "ADD", pod)]
    watcher.watch(0)
    events.append(Operation("DEL", pod.name, "pod", "net", time.monotonic(), time.monotonic(), DONE))
    watcher.watch(0)
    pod.view.delete("net1")
    time.sleep(0.1)
    watcher.watch(0)
    faults = check([*watcher.sights, *events])
    assert any(fault.startswith(f"{X} was on {SANDBOX} from") for fault in faults), faults


def test_a_namespace_that_goes_while_messages_wait_ends_after_them(node: Node, watcher: Watcher) -> None:
    pod = sandbox(node, SANDBOX)
    pod.view.add_veth("a", "b")
    watcher.watch(0)
    began = time.monotonic()
    pod.view.add_address("a", f"{X}/24")
    pod.view.delete_address("a", f"{X}/24")
    pod.view.add_address("a", f"{Y}/24")
    node.delete_pod(pod)
    assert until(lambda: watcher.watch(0) or len(watcher.sights) > 3)
    assert [(s.address, s.present) for s in watcher.sights] == [(X, True), (X, False), (Y, True), (Y, False)]
    assert watcher.sights[0].after <= watcher.sights[1].after <= began, "what waits may be as old as the last look"


def test_an_id_that_a_sandbox_gave_to_another_ends_nothing(node: Node, watcher: Watcher) -> None:
    pod, other, third = (sandbox(node, name) for name in (SANDBOX, OTHER, THIRD))
    other.view.add_veth("a", "b")
    other.view.add_address("a", f"{X}/24")
    third.view.add_veth("a", "b")
    third.view.add_address("a", f"{Y}/24")
    give_id(pod.view, third, int(OTHER))
    node.delete_pod(third)
    assert until(lambda: watcher.watch(0) or len(watcher.sights) > 2)
    watcher.watch(0.05)
    assert [(s.container, s.present) for s in watcher.sights] == [(OTHER, True), (THIRD, True), (THIRD, False)]


def test_messages_that_were_lost_end_the_watch(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_BUFFER_BYTES", 4096)
    pod = sandbox(node, SANDBOX)
    pod.view.add_veth("a", "b")
    with Watcher(node.host) as small:
        for k in range(1, 40):
            pod.view.add_address("a", f"192.168.7.{k}/24")
        with pytest.raises(OSError, match=os.strerror(errno.ENOBUFS)):
            small.watch(0)
