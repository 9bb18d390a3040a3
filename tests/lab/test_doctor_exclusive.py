"""`railcni doctor` on a node whose verbs devices are each in one network namespace."""

from collections.abc import Callable
from pathlib import Path

from cni.cli.doctor import report
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from tests.lab.machine import Machine, command
from tests.node import BIN

MACHINES = ("exclusive",)


def test_exclusive_mode_is_named_as_it_hides_the_device_from_pods_that_share_it(
    machine: Machine, tmp_path: Path, say: Callable[[str], None]
) -> None:
    for name in ("macvlan", "host-device", "whereabouts"):  # not `rdma`, which moves the device into its pod
        (tmp_path / name).symlink_to(BIN / name)
    command("modprobe", "rdma_ucm")
    machine.dummy()
    machine.soft_roce()
    found = report.examine(NodeFacts(NodePlaces(plugins=(str(tmp_path),)))).faults
    for fault in found:
        say(f"{fault.check}: {fault.subject}: {fault.found}; remedy: {fault.remedy}")
    assert [fault.check for fault in found] == ["netns-mode"]
    assert found[0].found.startswith("exclusive")
