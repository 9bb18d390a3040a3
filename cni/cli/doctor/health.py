"""How well links run: counters of errors since the port began, or during a watch; and NICs that are behind their siblings.

A counter that grows while traffic runs is a fault of cable, switch or congestion; what it says since the boot may be long over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from cni.cli.doctor.finding import Observation, advice, broken, ok
from cni.library.inventory.counters import CABLE, Counts
from cni.library.inventory.devices import Port, VerbsDevice
from cni.library.inventory.functions import Function
from cni.library.inventory.topology import text
from cni.shared.kernel import rdma_sysfs

PortCounts = Mapping[Port, Counts]


def check_counters(now: PortCounts, before: PortCounts, seconds: float) -> Iterator[Observation]:
    """The errors of each port: with a reading `before`, `seconds` ago, those that came since, else those since its start."""
    for port, values in now.items():
        found = list(_faults(str(port), values, before.get(port, {}), seconds))
        yield from found
        if values and not found:
            yield ok(str(port), f"no error in {seconds:g} s" if before else "few errors since its start")


def _faults(name: str, values: Counts, former: Counts, seconds: float) -> Iterator[Observation]:
    for counter, count in values.items():
        if counter in former:
            grown = count - former[counter]
            if grown > 0:
                rate = f"{grown} {counter.meaning} in {seconds:g} s ({grown / seconds:.3g}/s)"
                yield broken(name, rate, "none while traffic runs", counter.remedy)
        elif count >= counter.many:
            found = f"{count} {counter.meaning} since its start ({counter.place})"
            yield advice(
                name,
                found,
                f"fewer than {counter.many}",
                f"`railcni doctor --watch 10` tells whether they go on; {counter.remedy}",
            )


def check_siblings(devices: Sequence[VerbsDevice], functions: Sequence[Function]) -> Iterator[Observation]:
    """Of NICs of one kind those whose ports run slower than most of them, or whose firmware is older."""
    models = {function.id: (function.vendor, function.product) for function in functions}
    groups: dict[tuple[str, str], list[VerbsDevice]] = {}
    for device in devices:
        if device.pci in models and not device.is_virtual_function and any(port.is_active for port in device.ports):
            groups.setdefault(models[device.pci], []).append(device)
    for group in groups.values():
        if len(group) > 1:
            found = [*_slower(group), *_older(group)]
            yield from found
            if not found:
                yield ok(", ".join(device.name for device in group), "as fast as one another, with the same firmware")


def _slower(group: Sequence[VerbsDevice]) -> Iterator[Observation]:
    ports = [port for device in group for port in device.ports if port.is_active and _rate(port)]
    usual = Counter(map(_rate, ports)).most_common(1)[0][0] if ports else 0
    for port in ports:
        if _rate(port) < usual:
            healthy = f"{usual:g} Gb/s, as its siblings"
            yield advice(
                str(port), f"runs at {port.rate}", healthy, f"{CABLE}; a job on all rails is as slow as this one"
            )


def _older(group: Sequence[VerbsDevice]) -> Iterator[Observation]:
    newest = max((device.firmware for device in group), key=_version)
    for device in group:
        if device.firmware and _version(device.firmware) < _version(newest):
            yield advice(
                device.name, f"firmware {device.firmware}", f"{newest}, as a sibling of its kind", "update its firmware"
            )


def check_guids(devices: Sequence[VerbsDevice], guids: Mapping[str, str]) -> Iterator[Observation]:
    """Devices without a node GUID, as virtual functions of mlx5 are made: RDMA CM cannot use them."""
    for device in devices:
        if device.pci and not guids.get(device.name, "1").replace(":", "").strip("0"):
            is_ethernet = any(port.link_layer == rdma_sysfs.ETHERNET for port in device.ports)
            given = "mac MAC" if is_ethernet else "node_guid GUID and port_guid GUID"  # mlx5 derives it from the MAC
            remedy = f"ip link set PF vf N {given}, with a value of its own, then bind the function's driver again"
            yield broken(device.name, "its node GUID is 0: RDMA CM does not find it", "a GUID of its own", remedy)


def read_guids(devices: Sequence[VerbsDevice], root: str = "/sys") -> dict[str, str]:
    """The node GUID of each device that shows one."""
    found = {device.name: text(f"{root}{rdma_sysfs.CLASS}/{device.name}/node_guid") for device in devices}
    return {name: guid for name, guid in found.items() if guid}


def _rate(port: Port) -> float:
    number = port.rate.partition(" ")[0]
    return float(number) if number.replace(".", "", 1).isdigit() else 0.0


def _version(firmware: str) -> list[int]:
    return [int(part) for part in firmware.split(".") if part.isdigit()]
