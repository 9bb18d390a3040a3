"""Faults of the device plugins that came before, each by its number: see REGRESSIONS.md for those that other tests hold."""

from pathlib import Path

from cni.resources import config
from cni.resources.choose import resources
from cni.resources.node import read_host
from tests.device_plugin.scene import Machine


def test_a_nic_without_umad_and_issm_is_offered(tmp_path: Path) -> None:
    """k8s-rdma-shared-dev-plugin #94, #113, #159: "missing RDMA device spec ..., RDMA device issm not found"."""
    machine = Machine(tmp_path)
    kinds = {"vendor": "0x8086", "device": "0x1592", "class": "0x020000"}
    machine.tree.pci("0000:b5:00.0", driver="ice", **kinds)
    machine.tree.netdev("ens9f0", pci="0000:b5:00.0")
    machine.tree.verbs("irdma0", pci="0000:b5:00.0", netdev="ens9f0", nodes={"uverbs4": "infiniband_verbs"})
    machine.node("infiniband/uverbs4")
    text = '{"configList": [{"resourceName": "a", "rdmaHcaMax": 5, "selectors": {"vendors": ["8086"]}, "umad": %s}]}'
    for asked in ("false", "true"):
        read = config.read([("config.json", text % asked)])
        (found,) = resources(read.resources, read_host(str(tmp_path)))
        (offer,) = found.offers
        assert (offer.fault, found.healthy) == ("", 5)
        assert [path for path, _ in offer.nodes] == ["/dev/infiniband/uverbs4", "/dev/infiniband/rdma_cm"]
