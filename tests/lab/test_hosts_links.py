"""Masters and chains of tests/blackbox, with links of the kinds that a kernel may lack: bond, dummy, ipvlan, team, VLAN, VRF."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.blackbox import test_chains as chains
from tests.blackbox import test_masters as masters
from tests.lab import borrowed
from tests.lab.borrowed import Case
from tests.node import Node, Pod

MACHINES = ("hosts",)
KINDS = ("vlan", "bond", "team", "dummy")
CARRIED = ("by a vlan on it", "by a bond on it")
CHAINS = [chain for chain in chains.CHAINS if "vrf" in chain]
_removes = masters.test_whatever_the_master_stands_on_a_link_is_checked_and_deleted
_keeps = masters.test_an_address_stays_reserved_while_its_link_lives_without_a_path
_ipvlan = masters.test_an_ipvlan_and_a_netdev_that_has_one_are_refused_as_master
_carries = masters.test_the_link_of_a_default_route_in_use_is_not_taken_from_the_node
_free = masters.test_a_default_route_that_carries_nothing_of_the_nodes_is_no_hindrance
_chain = chains.test_a_chain_attaches_checks_and_detaches

CASES: list[Case] = [
    *((_removes, {"kind": kind}) for kind in KINDS),
    *((_keeps, {"kind": kind}) for kind in KINDS),
    *((_ipvlan, {"kind": kind}) for kind in ("ipvlan", "ipvtap")),
    *((_carries, {"scene": scene}) for scene in CARRIED),
    (_free, {"scene": "of a vrf"}),
    *((_chain, {"chain": c, "plugin": p, "version": "1.0.0"}) for p in ("macvlan", "host-device") for c in CHAINS),
]


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as fresh:
        yield fresh


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    made = node.pod()
    node.remember()
    return made


@pytest.mark.parametrize(("test", "given"), borrowed.parameters(CASES))
def test_with_a_link_of_that_kind(
    test: Callable[..., None], given: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    borrowed.run(test, given, request)
