"""The error counters of RDMA ports, and the rates and firmware versions of NICs, to compare NICs of one model.

`railcni doctor` judges the values, and the agent reports them to Prometheus.

Sources: Documentation/ABI/stable/sysfs-class-infiniband of the kernel, "counters"; for hw_counters NVIDIA's
"Understanding mlx5 Linux Counters", and the kernel's drivers/infiniband/hw/bnxt_re/hw_counters.c and ionic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cni.node.inventory.devices import gigabits, model_of
from cni.node.inventory.topology import beside, text
from cni.shared.kernel import rdma_sysfs, sysfs

CABLE = "see cable and transceiver (ethtool -m), and the switch port's counters"
_NETDEV = "netdev/"  # RoCE ports do not count link_downed; counters of their netdevs replace it
_LOSS = "see PFC and ECN here and on the switches: packets are lost on the way"


@dataclass(frozen=True)
class ErrorCounter:
    """An error counter. `place` is its path in the sysfs folder of the port or, with the prefix _NETDEV, of the port's
    netdev; for a bond, the counters of the bond's ports are added. `railcni doctor` reports a port whose counter is at
    least `many`."""

    place: str
    meaning: str
    many: int
    remedy: str

    @property
    def name(self) -> str:
        """The name of the counter, such as "link_downed"."""
        return self.place.rpartition("/")[2]


ERRORS = (
    ErrorCounter("counters/link_downed", "times that the link went down", 10, CABLE),
    ErrorCounter(f"{_NETDEV}carrier_down_count", "times that the netdev lost its carrier", 10, CABLE),
    ErrorCounter("counters/symbol_error", "symbol errors", 1000, CABLE),
    ErrorCounter("counters/local_link_integrity_errors", "errors of the local link", 10, CABLE),
    ErrorCounter("counters/port_rcv_errors", "packets received with an error", 1000, CABLE),
    ErrorCounter("hw_counters/rx_icrc_encapsulated", "RoCE packets with a wrong checksum", 100, CABLE),
    ErrorCounter("hw_counters/out_of_sequence", "packets out of sequence", 10_000, _LOSS),
    ErrorCounter("hw_counters/packet_seq_err", "negative acknowledgements of a sequence error", 10_000, _LOSS),
    ErrorCounter("hw_counters/local_ack_timeout_err", "acknowledgements that did not come in time", 1000, _LOSS),
    ErrorCounter("hw_counters/roce_adp_retrans", "adaptive retransmissions of RoCE", 1000, _LOSS),
    # Broadcom's bnxt_re, then AMD's ionic_rdma
    ErrorCounter("hw_counters/oos_drop_count", "packets out of sequence", 10_000, _LOSS),
    ErrorCounter("hw_counters/seq_err_naks_rcvd", "negative acknowledgements of a sequence error", 10_000, _LOSS),
    ErrorCounter("hw_counters/to_retransmits", "retransmissions after a timeout", 1000, _LOSS),
    ErrorCounter("hw_counters/resp_rx_outouf_seq", "packets out of sequence", 10_000, _LOSS),
    ErrorCounter("hw_counters/req_rx_pkt_seq_err", "negative acknowledgements of a sequence error", 10_000, _LOSS),
    ErrorCounter("hw_counters/tx_rdma_ack_timeout", "acknowledgements that did not come in time", 1000, _LOSS),
)
Counts = Mapping[ErrorCounter, int]
"""The value of each counter that a port has."""
Samples = dict[tuple[str, ...], float]
"""The values of a metric by its labels."""


def read(device: str, port: int, root: str = "/sys") -> Counts:
    """The error counters of a port of the verbs device `device`. Counters that the driver lacks are left out."""
    here = f"{root}{rdma_sysfs.CLASS}/{device}/ports/{port}"
    netdev = rdma_sysfs.netdev_of(device, port, root)
    folders = [f"{root}/class/net/{name}" for name in beside(netdev, "lower_", root) or [netdev]]  # a bond's ports
    found = {}
    for counter in ERRORS:
        own = counter.place.removeprefix(_NETDEV)
        values = [text(f"{folder}/{own}") for folder in (folders if own != counter.place else [here])]
        if any(map(str.isdigit, values)):
            found[counter] = sum(int(value) for value in values if value.isdigit())
    return found


def samples(root: str = "/sys") -> Samples:
    """The values of the error counters of all ports, by (device, port, name of the counter)."""
    return {
        (device, str(port), counter.name): value
        for device in rdma_sysfs.devices(root)
        for port in rdma_sysfs.ports(device, root)
        for counter, value in read(device, port, root).items()
    }


def siblings(root: str = "/sys") -> tuple[Samples, Samples]:
    """Return two metrics of NICs with an active port, without virtual functions and software devices. The first has the
    rate of each active port, in bytes a second, by (device, port, model, link layer). The second has the value 1 for
    each (device, model, firmware)."""
    rates: Samples = {}
    firmware: Samples = {}
    for device in rdma_sysfs.devices(root):
        address = rdma_sysfs.pci_of(device, root)
        if not address or sysfs.physical_function_of(address, root):
            continue
        model = model_of(device, address, root)
        states = [rdma_sysfs.PortState(device, port, root) for port in rdma_sysfs.ports(device, root)]
        for state in (state for state in states if state.state == rdma_sysfs.ACTIVE):
            if speed := gigabits(state.rate):
                rates[device, str(state.number), model, state.link_layer] = speed * 1e9 / 8
            if version := text(f"{root}{rdma_sysfs.CLASS}/{device}/fw_ver"):
                firmware[device, model, version] = 1
    return rates, firmware
