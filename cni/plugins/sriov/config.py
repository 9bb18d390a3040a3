"""The configuration of sriov. `read` is pure but for the node's policy, which it asks about `logFile`."""

from __future__ import annotations

from cni.shared import log as levels
from cni.shared.config import (
    Fault,
    Key,
    boolean,
    fill,
    hardware_address,
    integer,
    ipam_block,
    mapping,
    one_of,
    optional,
    string,
)
from cni.shared.kernel import sysfs
from cni.shared.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.spec.request import Request

LOG_LEVELS = ("panic", "error", "warning", "info", "verbose", "debug")


def pci_address(value: Any) -> str:
    """A reader: a PCI address."""
    if not sysfs.is_pci_address(string(value)):
        raise ValueError("want the PCI address of a VF, such as 0000:3b:00.2")
    return str(value).lower()


def vlan_protocol(value: Any) -> str:
    """A reader: the protocol of a VLAN."""
    return str(one_of("802.1q", "802.1ad")(string(value).lower()))


KEYS = (
    Key("deviceID", optional(pci_address), "", "PCI address of the VF; runtimeConfig.deviceID comes first", "pci"),
    Key("vlan", integer(0, 4094), None, "VLAN of the VF, which it does not see itself; 0: none"),
    Key("vlanQoS", integer(0, 7), None, "priority in that VLAN; default: 0"),
    Key("vlanProto", vlan_protocol, None, "kind of its tag: 802.1q or 802.1ad; default: 802.1q"),
    Key("mac", optional(hardware_address), "", "MAC address; default: as the VF has it"),
    Key("min_tx_rate", integer(0, 2**32 - 1), None, "least rate of sending in Mbit/s; 0: none"),
    Key("max_tx_rate", integer(0, 2**32 - 1), None, "greatest rate of sending in Mbit/s; 0: no bound"),
    Key("spoofchk", optional(one_of("on", "off")), "", "drop what the VF sends from another MAC"),
    Key("trust", optional(one_of("on", "off")), "", "let the VF become promiscuous and change its MAC"),
    Key(
        "link_state",
        optional(one_of("auto", "enable", "disable")),
        "",
        "carrier of the VF: the PF's, or always, or never",
    ),
    Key(
        "mtu",
        integer(0, 65535),
        0,
        "MTU in the sandbox in bytes, at most the PF's; 0: as the VF has it, in the result of a VF without a netdev (DPDK) the PF's",
    ),
    Key("dad", boolean, False, "wait for duplicate address detection of IPv6 addresses"),
    Key("logLevel", optional(one_of(*LOG_LEVELS), "warning"), "warning", "least level of the log lines"),
    Key("logFile", optional(string), "", "path of a file to which log lines are appended, in addition to stderr"),
    Key("ipam", ipam_block, {}, "the IPAM plugin's configuration; absent or {}: no addresses"),
    Key("dns", mapping, {}, "DNS settings for the result; default: the IPAM plugin's"),
)
OF_PF = ("vlan", "vlanQoS", "vlanProto", "min_tx_rate", "max_tx_rate", "spoofchk", "trust", "link_state")


class Config:
    """The keys of KEYS, checked; those of OF_PF None or "" when left out. `mac` is the one that counts."""

    __slots__ = tuple(k.attribute for k in KEYS)

    pci: str
    vlan: int | None
    vlanQoS: int | None  # the keys of cni.shared.kernel.vfs
    vlanProto: str | None
    mac: str
    min_tx_rate: int | None
    max_tx_rate: int | None
    spoofchk: str
    trust: str
    link_state: str
    mtu: int
    dad: bool
    logLevel: str
    logFile: str
    ipam: dict[str, Any]
    dns: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """The settings that the VF gets by its PF, each complete, in the form of cni.shared.kernel.vfs; without the MAC."""
        found: dict[str, Any] = {}
        if self.vlan is not None:
            found |= {"vlan": self.vlan, "vlanQoS": self.vlanQoS or 0, "vlanProto": self.vlanProto or "802.1q"}
        if self.min_tx_rate is not None or self.max_tx_rate is not None:
            found |= {"min_tx_rate": self.min_tx_rate or 0, "max_tx_rate": self.max_tx_rate or 0}
        for key in ("spoofchk", "trust", "link_state"):
            if getattr(self, key):
                found[key] = getattr(self, key)
        return found


def read(request: Request, faults: list[Fault]) -> Config:
    """The checked configuration; all its faults go to `faults`."""
    config = Config()
    fill(config, KEYS, request.config, faults)
    runtime = member(request.config, "runtimeConfig")
    of_runtime = runtime if isinstance(runtime, dict) else {}
    for key, attribute, reader, value in (
        ("runtimeConfig.deviceID", "pci", pci_address, member(of_runtime, "deviceID")),
        ("CNI_ARGS MAC", "mac", hardware_address, request.args.get("MAC")),
        ("runtimeConfig.mac", "mac", hardware_address, member(of_runtime, "mac")),
    ):
        if value:
            try:
                setattr(config, attribute, reader(value))
            except ValueError as fault:
                faults.append(Fault(key, value, str(fault)))
    faults += _contradictions(config)
    return config


def _contradictions(config: Config) -> list[Fault]:
    found = []
    if config.vlan is None:
        for key in ("vlanQoS", "vlanProto"):
            if getattr(config, key) is not None:
                found.append(Fault(key, getattr(config, key), "needs the key `vlan`"))
    elif config.vlan == 0 and config.vlanQoS:
        found.append(Fault("vlanQoS", config.vlanQoS, "needs a `vlan` of 1 to 4094"))
    elif config.vlan == 0 and config.vlanProto == "802.1ad":
        found.append(Fault("vlanProto", config.vlanProto, "needs a `vlan` of 1 to 4094"))
    if config.max_tx_rate and (config.min_tx_rate or 0) > config.max_tx_rate:
        found.append(Fault("min_tx_rate", config.min_tx_rate, f"is above max_tx_rate {config.max_tx_rate}"))
    if config.logFile:
        from cni.shared import policy

        try:
            policy.current().confine("logRoots", config.logFile)
        except ValueError as fault:
            found.append(Fault("logFile", config.logFile, str(fault)))
    return found


def direct_log(request: Request, log: Log) -> None:
    """Give `log` the file and level of the network, if they are valid and the node's policy allows them."""
    level = member(request.config, "logLevel")
    level = "verbose" if level == "info" else level
    if level in levels.LEVELS:
        log.level = level
    path = member(request.config, "logFile")
    if path and isinstance(path, str):
        from cni.shared import policy

        try:
            log.path = policy.current().confine("logRoots", path)
        except ValueError:
            pass  # an ADD reports the fault later; a DEL goes on
