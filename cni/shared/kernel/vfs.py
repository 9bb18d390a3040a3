"""Read and write the settings of virtual functions (VFs) through the netdev of their physical function (PF).

A state is a dictionary with the settings of a VF, named as in ip-link(8):

    mac           the administrative MAC, "00:00:00:00:00:00" for none; some drivers show the VF's own MAC instead
    vlan          0 to 4094, 0: none; vlanQoS 0 to 7; vlanProto "802.1q" or "802.1ad"
    min_tx_rate   in Mbit/s, 0 for no bound; likewise max_tx_rate
    spoofchk      "on" or "off", "" when the driver does not show the setting; likewise trust
    link_state    "auto", "enable" or "disable"

A driver refuses a setting that it does not support with EOPNOTSUPP. Sources: struct ifla_vf_* of
include/uapi/linux/if_link.h; do_setvfinfo and rtnl_fill_vfinfo of net/core/rtnetlink.c.
"""

from __future__ import annotations

from errno import EINVAL, ENODEV, EOPNOTSUPP, EPERM
from struct import Struct
from typing import Any

from cni.shared.kernel.links import GETLINK, NEWLINK, Rtnl, ifinfo
from cni.shared.kernel.netlink import NESTED, KernelError, attribute, unpack_attributes, unpack_list

NO_MAC = "00:00:00:00:00:00"
SETTINGS = (  # the keys of one tuple are set together, by one message
    ("vlan", "vlanQoS", "vlanProto"),
    ("min_tx_rate", "max_tx_rate"),
    ("spoofchk",),
    ("trust",),
    ("link_state",),
    ("mac",),
)

_VFINFO_LIST, _EXT_MASK = 22, 29  # attributes of a link
_WITH_VFS = attribute(_EXT_MASK, b"\x09\0\0\0")  # RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS
_VF_INFO = 1  # in _VFINFO_LIST
_MAC, _VLAN, _SPOOFCHK, _LINK_STATE, _RATE, _TRUST, _VLAN_LIST = 1, 2, 4, 5, 6, 9, 12  # in _VF_INFO
_NODE_GUID, _PORT_GUID = 10, 11  # in _VF_INFO, of InfiniBand
_VLAN_INFO = 1  # in _VLAN_LIST

_PAIR = Struct("=II")  # vf, setting
_MAC_BYTES = Struct("=I32s")
_GUID = Struct("=I4xQ")
_RATES = Struct("=III")
_TAG = Struct("=III2s")  # vf, vlan, qos, protocol in network order
_PROTOCOLS = {"802.1q": b"\x81\x00", "802.1ad": b"\x88\xa8"}
_PROTOCOL_NAMES = {octets: name for name, octets in _PROTOCOLS.items()}
_SWITCH = {"off": 0, "on": 1}
_STATES = ("auto", "enable", "disable")


def read(host: Rtnl, pf_index: int, vf: int) -> dict[str, Any] | None:
    """The state of the VF number `vf` of the PF; None when the PF has no such VF. Raises KernelError on a refusal."""
    found = _info(host, pf_index, vf)
    return _state(found) if found else None


def guid(host: Rtnl, pf_index: int, vf: int) -> str | None:
    """The node GUID of VF number `vf` of an InfiniBand PF; None if not shown. Raises KernelError on a refusal."""
    payload = _info(host, pf_index, vf).get(_NODE_GUID)
    return _GUID.unpack_from(payload)[1].to_bytes(8, "big").hex(":") if payload else None


def _info(host: Rtnl, pf_index: int, vf: int) -> dict[int, bytes]:
    body = host.get(GETLINK, ifinfo(pf_index) + _WITH_VFS)
    listed = unpack_attributes(body, len(ifinfo(0))).get(_VFINFO_LIST, b"")
    for kind, payload in unpack_list(listed):
        found = unpack_attributes(payload)
        if kind == _VF_INFO and _MAC in found and _MAC_BYTES.unpack_from(found[_MAC])[0] == vf:
            return found
    return {}


def _state(found: dict[int, bytes]) -> dict[str, Any]:
    _, octets = _MAC_BYTES.unpack_from(found[_MAC])
    state = {"mac": octets[:6].hex(":"), "vlan": 0, "vlanQoS": 0, "vlanProto": "802.1q"}
    tags = unpack_attributes(found.get(_VLAN_LIST, b""))
    if _VLAN_INFO in tags:
        _, state["vlan"], state["vlanQoS"], protocol = _TAG.unpack_from(tags[_VLAN_INFO])
        state["vlanProto"] = _PROTOCOL_NAMES.get(protocol, "802.1q")
    state["min_tx_rate"], state["max_tx_rate"] = _RATES.unpack_from(found[_RATE])[1:] if _RATE in found else (0, 0)
    state["spoofchk"] = _switched(found.get(_SPOOFCHK, b""))
    state["trust"] = _switched(found.get(_TRUST, b""))
    number = _PAIR.unpack_from(found[_LINK_STATE])[1] if _LINK_STATE in found else 0
    state["link_state"] = _STATES[number] if number < len(_STATES) else "auto"
    return state


def _switched(payload: bytes) -> str:
    number = _PAIR.unpack_from(payload)[1] if payload else -1
    return next((name for name, value in _SWITCH.items() if value == number), "")


def write(host: Rtnl, pf_index: int, vf: int, setting: tuple[str, ...], state: dict[str, Any]) -> None:
    """Set one of SETTINGS, or ("guid",), of the VF to the values in `state`. Raises KernelError if the driver refuses."""
    info = attribute(_VF_INFO | NESTED, _packed(vf, setting[0], state))
    host.request(NEWLINK, ifinfo(pf_index) + attribute(_VFINFO_LIST | NESTED, info))


def _packed(vf: int, first: str, state: dict[str, Any]) -> bytes:
    """The netlink attribute for the setting in SETTINGS whose first key is `first`, with the values in `state`."""
    value = state[first]
    if first == "mac":
        return attribute(_MAC, _MAC_BYTES.pack(vf, bytes.fromhex(value.replace(":", ""))))
    if first == "guid":
        payload = _GUID.pack(vf, int(value.replace(":", ""), 16))
        return attribute(_NODE_GUID, payload) + attribute(_PORT_GUID, payload)
    if first == "vlan":
        if state["vlanProto"] == "802.1q":  # every driver with VLANs supports this attribute
            return attribute(_VLAN, Struct("=III").pack(vf, value, state["vlanQoS"]))
        tag = _TAG.pack(vf, value, state["vlanQoS"], _PROTOCOLS[state["vlanProto"]])
        return attribute(_VLAN_LIST | NESTED, attribute(_VLAN_INFO, tag + b"\0\0"))
    if first == "min_tx_rate":
        return attribute(_RATE, _RATES.pack(vf, value, state["max_tx_rate"]))
    if first == "link_state":
        return attribute(_LINK_STATE, _PAIR.pack(vf, _STATES.index(value)))
    return attribute({"spoofchk": _SPOOFCHK, "trust": _TRUST}[first], _PAIR.pack(vf, _SWITCH[value]))


def refusal(setting: tuple[str, ...], fault: KernelError) -> str:
    """The cause and the remedy, for an error message, of the kernel's refusal `fault` of `setting`."""
    key = setting[0]
    if fault.errno == EOPNOTSUPP:
        return f"the PF's driver cannot set `{key}`: leave the key out"
    if fault.errno == EINVAL and key == "min_tx_rate":
        return "the PF's driver refuses these rates: `min_tx_rate` may be unknown to it, or a rate above the link's"
    if fault.errno == EINVAL:
        return f"the PF's driver refuses this `{key}`: correct it, or leave it out"
    if fault.errno == ENODEV:
        return "the PF has vanished: retry when it is back"
    if fault.errno == EPERM:
        return "run as root, with CAP_NET_ADMIN"
    return f"the PF's driver answers: {fault.strerror}"
