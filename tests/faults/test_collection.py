"""GC of the IPAM plugin beside attachments of a link plugin of ours: the churn has found that the two must agree."""

from tests.faults.churn.run import MASTER, network
from tests.node import Node


def test_the_ipam_plugin_does_not_collect_what_has_a_link(node: Node) -> None:
    """A link plugin's GC looks for its attachments, then calls the IPAM plugin; an ADD that began and ended in between
    is in neither list, and is older than the IPAM plugin's call. Its link has the addresses."""
    node.master(MASTER)
    pod = node.pod()
    config = {**network(), "name": "churn"}
    given = node.cni("macvlan", "ADD", config, netns=pod, path=[node.executables])
    collection = {**config, "cni.dev/valid-attachments": []}
    node.cni("whereabouts", "GC", collection, path=[node.executables]).succeeded()
    assert sorted(node.leases()) == sorted(a.split("/")[0] for a in given.addresses)
    assert pod.view.link("net1").texts
    node.cni("macvlan", "GC", collection, path=[node.executables]).succeeded()
    assert node.leases() == []
    assert pod.view.names() == []
