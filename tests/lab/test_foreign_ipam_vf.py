"""sriov on a real VF with IPAM plugins and chains of others, by the scenes of tests/blackbox; DHCP's server is on another VF."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox import test_chains as chains
from tests.blackbox import test_foreign_ipam as foreign
from tests.blackbox.test_foreign_ipam import dhcp, ipam, pod  # noqa: F401  # fixtures
from tests.lab import borrowed
from tests.lab.borrowed import Case
from tests.lab.machine import Machine, command
from tests.lab.pci import card
from tests.node import until
from tests.view import View

MACHINES = ("sriov",)
PLUGIN = {"plugin": "sriov"}
CASES: list[Case] = [
    *(
        (test, PLUGIN)
        for test in (
            foreign.test_the_link_is_up_without_addresses_while_the_ipam_plugin_gives_and_takes_them,
            foreign.test_an_add_that_fails_takes_its_link_with_it_after_the_ipam_plugins_delete,
            foreign.test_a_delete_finds_the_link_that_the_pod_renamed,
            foreign.test_addresses_are_given_back_when_the_sandbox_is_gone,
            foreign.test_without_dhcps_daemon_the_link_goes_and_the_delete_is_made_again,
            foreign.test_a_dhcp_attachment_ends_when_its_sandbox_is_gone,
        )
    ),
    (
        foreign.test_what_an_add_left_that_was_killed_at_the_ipam_plugin_is_given_back_by_the_link,
        {**PLUGIN, "after": "DEL"},
    ),
    *(
        (
            foreign.test_an_ipam_plugin_whose_delete_fails_fails_one_of_ours_and_is_asked_again_later,
            {**PLUGIN, "why": why, "way": "DEL", "told": told},
        )
        for why, told in ((foreign.is_nowhere, "in none of the directories"), (foreign.refuses, "the server is away"))
    ),
    (foreign.test_a_delete_ends_what_an_add_could_not_begin, {**PLUGIN, "block": {"type": "dhcp"}, "code": 999}),
    *(
        (foreign.test_gos_address_plugins_serve_each_verb, {**PLUGIN, "ipam": block, "version": "1.0.0"})
        for block in (foreign.HOST_LOCAL, foreign.STATIC)
    ),
    *(
        (foreign.test_a_dhcp_server_gives_the_address_and_gets_it_back, {**PLUGIN, "version": "1.0.0", "end": end})
        for end in ("DEL", "GC")
    ),
    *(
        (chains.test_a_chain_attaches_checks_and_detaches, {**PLUGIN, "chain": chain, "version": "1.0.0"})
        for chain in (("loopback", "tuning", chains.SELF), (chains.SELF, "tuning-mac", "sbr", "bandwidth", "portmap"))
    ),
]


@pytest.fixture
def node(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The guest with two VFs: what sriov is to attach, and the wire."""
    with card(machine) as nic:
        for module in (foreign, chains):
            monkeypatch.setitem(module.SELECTED, "sriov", {"deviceID": nic.vfs[0]})
        yield machine
    for path in (foreign.ROOT, foreign.SOCKET, foreign.SERVER_LEASES):
        shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)


@pytest.fixture
def wire(node: Machine) -> View:
    name = f"wire-{foreign.MASTER}"
    view = node.namespace(name)
    command("ip", "link", "set", "ens1f0v1", "down")
    command("ip", "link", "set", "ens1f0v1", "netns", name, "name", "peer")
    view.set("peer", state="up")
    assert until(lambda: view.link("peer").carrier, 60)
    return view


@pytest.mark.parametrize(("test", "given"), borrowed.parameters(CASES))
def test_sriov_beside_plugins_of_others(
    test: Callable[..., None], given: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    borrowed.run(test, given, request)
