"""Rails over 8 masters that are ports of one switch, 20 pods at once, calls killed at random, over every store."""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import fabric
from tests.fabric import Fabric
from tests.faults import backing
from tests.faults.inject import begin
from tests.node import Node, Pod

RAILS, PODS, WORKERS = 8, 20, 6
KILLED = 0.3  # of the calls
SEED = 7

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Runtime:
    """Calls plugins as a runtime would that is killed, with what it has started, again and again."""

    def __init__(self, rails: Fabric) -> None:
        self.rails = rails
        self.killed = 0

    def call(self, verb: str, pod: Pod, rail: int, chance: random.Random) -> Any:
        """The result of a call that is repeated until it was not killed."""
        while True:
            call = self.rails.node.start_cni(
                "macvlan", verb, self.rails.network(rail), container_id=f"id-{pod.name}", ifname=f"net{rail}",
                netns=pod, args=f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod.name}",
            )  # fmt: skip
            if chance.random() >= KILLED:
                return call.finish(120).succeeded()
            begin(call)
            time.sleep(chance.random() * 0.4)
            call.process.kill()
            call.process.communicate()
            self.killed += 1

    def attach(self, pod: Pod, number: int) -> list[str]:
        """All rails, in any order; the address on each."""
        chance = random.Random(f"{SEED} {number}")
        order = list(range(RAILS))
        chance.shuffle(order)
        given = {rail: self.call("ADD", pod, rail, chance) for rail in order}
        return [given[rail]["ips"][0]["address"].partition("/")[0] for rail in range(RAILS)]

    def detach(self, pod: Pod, number: int) -> None:
        chance = random.Random(f"{SEED} DEL {number}")
        for rail in chance.sample(range(RAILS), RAILS):
            self.call("DEL", pod, rail, chance)


@pytest.fixture(params=("file", "etcd", "kubernetes"))
def site(request: pytest.FixtureRequest, node: Node) -> Iterator[tuple[Fabric, Callable[[], Sequence[object]]]]:
    """The rails, and what tells their leases."""
    if why := backing.unavailable(request.param):
        pytest.skip(why)
    store = backing.BACKINGS[request.param](node, "rails")

    def held() -> Sequence[object]:
        found = store.read()
        return node.leases() if found is None else [*found.leases, *found.late]

    yield Fabric(node, RAILS, **store.config()), held
    store.close()


def test_pods_have_one_index_on_all_rails_whatever_is_killed_and_no_rail_answers_for_another(site: Any) -> None:
    rails, held = site
    runtime = Runtime(rails)
    pods = [rails.node.pod(f"p{n}") for n in range(PODS)]
    with ThreadPoolExecutor(WORKERS) as workers:
        given = list(workers.map(runtime.attach, pods, range(PODS)))
    indexes = []
    for addresses in given:
        (index,) = {int(address.rpartition(".")[2]) for address in addresses}
        assert addresses == [f"192.168.{rail}.{index}" for rail in range(RAILS)]
        indexes.append(index)
    assert len(set(indexes)) == PODS, indexes
    macs = {
        (pod.view.link(f"net{rail}").mac, addresses[rail])
        for pod, addresses in zip(pods, given, strict=True)
        for rail in range(RAILS)
    }
    with fabric.Arp(rails.switch, "br0") as arp:
        for n, (pod, addresses) in enumerate(zip(pods, given, strict=True)):
            peer = given[(n + 1) % PODS]
            for rail in range(RAILS):
                fabric.ping(pod, addresses[rail], peer[rail])
        assert arp.ask(*(address for addresses in given for address in addresses)) == macs
    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(runtime.detach, pods, range(PODS)))
    assert (held(), [rule for pod in pods for rule in fabric.rules(pod.view)]) == ([], [])
    assert runtime.killed
    for rail in range(RAILS):
        config = {**rails.network(rail), "cni.dev/valid-attachments": []}
        rails.node.cni("macvlan", "GC", config).succeeded()
    left = [line for line in rails.node.leftovers(settle=5) if "railcni" in line or "link" in line]
    assert left == [], json.dumps(left[:20])
