"""Choose the rail of an attachment to a network with `rail.nics`, by the NIC allocated to the pod.

A rail is a numbered NIC with a subnet (cni.shared.rail). `rail.nics` lists the NICs of all rails, `rail.index` is the
number of one rail. `complete` replaces the configuration of a request by that of one rail, in which `rail.index` is
set. It is called before other code reads the configuration, so no other module handles `rail.nics`. The record of the
attachment keeps the replaced configuration. Calls after the ADD read it there, because the device may be gone.
"""

from __future__ import annotations

from typing import Any

from cni.shared import rail
from cni.shared.kernel import rdma_sysfs
from cni.shared.log import Log
from cni.shared.records import LINK, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import Request, member

_REMEDY = (
    "name the resource of the rails' NICs in the NAD's annotation k8s.v1.cni.cncf.io/resourceName, and ask for a device of it"
    " for each time that the pod names the network"
)


def complete(request: Request, log: Log) -> None:
    """Replace the configuration of `request`, if it has the key `rail`, by the configuration of one rail.

    Raises InvalidConfig for an ADD without an allocated device, or whose device contradicts `rail.nics` or another key.
    """
    document = request.member("rail")
    if not isinstance(document, dict):
        return
    index, nics = member(document, "index"), member(document, "nics")
    if isinstance(nics, list) and nics:
        if request.command == "ADD":
            index = _allocated(request, nics, index)
        elif index is None and request.command in ("DEL", "CHECK"):
            index = _recorded(request, log)
            if index is None:  # another suite's plugin has made the link
                index = rail.of_names(nics, _names(request))
        elif index is None:
            index = 0  # GC and STATUS concern the whole network, and a pod's index is the same on all rails
    config = rail.completed(request.config, index)
    if config != request.config:
        request.configure(config, codec.dumps(config).encode())


def _allocated(request: Request, nics: list[Any], index: Any) -> int:
    device = _device(request)
    if not device:
        raise InvalidConfig(f"rail.nics need a deviceID, by which the rail is found: {_REMEDY}")
    found = rail.of_names(nics, _names(request))
    listed = ", ".join(map(str, nics))[:400]
    if found is None:
        raise InvalidConfig(
            f'deviceID "{device}" is on no NIC of rail.nics ({listed}): {_REMEDY}, or add its NIC to rail.nics and rail.ranges'
        )
    if index is not None and index != found:
        raise InvalidConfig(
            f'deviceID "{device}" is on the NIC of rail {found} ({nics[found]}), and rail.index is {index}: {_REMEDY}, or leave'
            " rail.index out"
        )
    fixed = [key for key in ("master", "linkInContainer", "device", "hwaddr", "kernelpath") if request.member(key)]
    fixed += [f"ipam.{key}" for key in ("range", "ipRanges") if member(request.member("ipam"), key)]
    if index is None and fixed:
        raise InvalidConfig(f"{fixed[0]} is of one rail, and with rail.nics the network is all rails: remove it")
    return found


def _device(request: Request) -> str:
    device = request.of_runtime("deviceID") or request.member("deviceID")
    return device if isinstance(device, str) else ""


def _names(request: Request) -> set[str]:
    return rdma_sysfs.names_of_nic(_device(request))


def _recorded(request: Request, log: Log) -> Any:
    """The number of the rail in the record of the attachment; None without a record, or without a number in it."""
    try:
        record = Records(log=log).read(request.attachment, LINK)
        config = codec.loads(record["config"].encode()) if record else {}
    except CniError:  # the verb itself reports the error
        return None
    return member(config, "rail", "index")
