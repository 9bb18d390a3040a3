"""Pydantic models of the configuration. The keys and their meaning are those of the RDMA shared device plugin, the
SR-IOV device plugin and, for virtual functions, SriovNetworkNodePolicy.

Sources: README.md of Mellanox/k8s-rdma-shared-dev-plugin and of k8snetworkplumbingwg/sriov-network-device-plugin;
api/v1/sriovnetworknodepolicy_types.go of k8snetworkplumbingwg/sriov-network-operator.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from cni.documents.models import OBJECT_NAME, GoModel, matching
from cni.node.inventory import topology
from cni.shared import rail

MOST_DEVICES = 40_000  # of a resource: kubelet takes messages up to 4 MiB
OTHER_PLUGIN = "leave this resource to the SR-IOV device plugin"
_LONGEST_NAME = 63  # characters of the name of a Kubernetes object or of a ResourceSlice's device
_IDS = 'write a list of IDs such as ["15b3"]'
_SWITCH = "write true or false"
FIXES = {  # remedies by the last key of a fault; the remedy of a list is for contradictory keys of a member
    "configList": 'write either "devices": ["ens2f0"] or "selectors": {"ifNames": ["ens2f0"]}',
    "resourceName": "write a name such as hca_shared_devices_a",
    "resourcePrefix": "write a domain such as rdma or example.com",
    "rdmaHcaMax": 'write a number such as "rdmaHcaMax": 1000',
    "pciAddresses": "write addresses such as 0000:3b:00.2, as `railcni rdma` shows them",
    "pfNames": "write NETDEV, NETDEV#3 or NETDEV#0-3,7",
    "rootDevices": "write ADDRESS, ADDRESS#3 or ADDRESS#0-3,7",
    "deviceType": OTHER_PLUGIN,
    "linkTypes": "write ether or infiniband",
    "resourceList": 'write objects such as {"resourceName": "vf", "selectors": [{"pfNames": ["ens2f1#0-3"]}]}',
    "devices": 'write a list: of NICs such as ["ens2f0"] to share, of IDs such as ["101e"] for functions',
    "selectors": 'write "selectors": {"drivers": ["mlx5_core"]}',
    "vendors": _IDS,
    "deviceIDs": _IDS,
    "drivers": 'write a list of drivers such as ["mlx5_core"]',
    "ifNames": 'write a list of NICs such as ["ens2f0"]',
    "gidsPerDevice": 'write a number such as "gidsPerDevice": 4',
    "rails": 'write objects such as {"group": "gpu", "nics": ["eth_r0", "eth_r1"]}',
    "group": "write a name such as gpu",
    "nics": 'write the NIC of each rail, that of rail 0 first: ["eth_r0", "eth_r1"]',
    "additionalInfo": 'write values by name by PCI address: {"*": {"name": "value"}}',
    **dict.fromkeys(("umad", "allNics", "isRdma", "needVhostNet", "excludeTopology"), _SWITCH),
}
POLICY_FIXES = FIXES | {
    "numVfs": 'write a number such as "numVfs": 8',
    "deviceType": "write netdevice or vfio-pci",
    "mtu": 'write a number such as "mtu": 9000',
    "priority": "write a number from 0, which counts most, to 99",
    "nicSelector": 'write "nicSelector": {"pfNames": ["ens2f1#0-3"]}',
    "linkType": "write eth or ib",
    "eSwitchMode": "leave the switchdev mode to sriov-network-operator",
    "virtualFunctions": 'write objects such as {"nicSelector": {"pfNames": ["ens2f1"]}, "numVfs": 8}',
    "vendor": 'write an ID such as "15b3"',
    "deviceID": 'write an ID such as "101d"',
    "externallyManaged": _SWITCH,
}
VFIO = "vfio-pci"
MOST_VFS = 65535  # TotalVFs of PCI Express has 16 bits
OPERATOR_PREFIX = "openshift.io"  # the default prefix of resources of sriov-network-operator
RANGED = ("pfNames", "rootDevices")
_RANGE = re.compile(r"[^#]+(#\d+(-\d+)?(,\d+(-\d+)?)*)?")
_CODE = re.compile(r"(0[xX])?[0-9a-fA-F]{4}")


def prefix(text: str) -> str:
    """Return `text` if it can be the domain of a resource's name. Raises ValueError if it cannot."""
    if not OBJECT_NAME.fullmatch(text) or len(text) > 253:
        raise ValueError("want a domain in small letters")
    if "kubernetes.io" in text or text.startswith("requests."):
        raise ValueError("kubelet takes no resource of this prefix")
    return text


def _quoted(value: object) -> object:
    if isinstance(value, int):
        raise ValueError("want text in quotes, since YAML reads these digits as a number")
    return value


def _ranged(text: str) -> str:
    if not _RANGE.fullmatch(text):
        raise ValueError("want a name, or a name with the numbers of VFs after a #")
    for first, last in spans(text)[1]:
        if first > last:
            raise ValueError(f"the range {first}-{last} is empty: want the lower number first")
    return text


_NAMES = "want letters, digits, - _ . with a letter or digit first and last, 63 characters at most"
Name = Annotated[str, matching(re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?").fullmatch, _NAMES)]
_folded = AfterValidator(lambda text: text.lower().removeprefix("0x"))
Code = Annotated[str, matching(_CODE.fullmatch, "want four hexadecimal digits"), _folded]
Address = Annotated[str, matching(topology.is_address, "want a PCI address"), _folded]
_listed = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
Texts = list[str]
Codes = list[Annotated[Code, BeforeValidator(_quoted)]]
Ranged = list[Annotated[str, AfterValidator(_ranged)]]
LinkTypes = list[Literal["ether", "infiniband"]]


class _Model(GoModel, BaseModel):
    """A GoModel, whose keys match as in Go's encoding/json. With the base BaseModel, ruff allows mutable defaults."""


class Selectors(_Model):
    """The selectors of devices. A device must match at least one member of each non-empty list."""

    vendors: Codes = []
    drivers: Texts = []
    linkTypes: LinkTypes = []


class SharedSelectors(Selectors):
    deviceIDs: Codes = []
    ifNames: Texts = []


class ExclusiveSelectors(Selectors):
    """The selectors of functions. Names in `pfNames` and `rootDevices` may end with VF numbers: "ens2f0#0-3,7"."""

    devices: Codes = []
    pciAddresses: list[Address] = []
    pfNames: Ranged = []
    rootDevices: Ranged = []
    isRdma: bool = False
    needVhostNet: bool = False


class MadeSelectors(ExclusiveSelectors):
    """Selectors made from a VfPolicy: the VFs that they select may not exist yet."""


class _Resource(_Model):
    resourceName: Name
    resourcePrefix: Annotated[str, AfterValidator(prefix)]
    umad: bool = False
    """whether containers get umadN and issmN too, for subnet managers and diagnostics; a key of this project"""

    @property
    def name(self) -> str:
        """The full name, which pods ask for: "rdma/hca_shared_devices_a"."""
        return f"{self.resourcePrefix}/{self.resourceName}"


class Shared(_Resource):
    """A resource whose devices many containers use at once. `allNics` and `gidsPerDevice` are this project's keys."""

    resourcePrefix: Annotated[str, AfterValidator(prefix)] = "rdma"
    rdmaHcaMax: Annotated[int, Field(ge=0, le=MOST_DEVICES)]
    devices: Texts = []
    selectors: SharedSelectors = SharedSelectors()
    allNics: bool = False
    """whether a container gets the device nodes of all chosen NICs, not only of one NIC"""
    gidsPerDevice: Annotated[int, Field(ge=0)] | None = None
    """the GIDs that are kept free for each device; 0: only rdmaHcaMax limits the number of devices"""

    @model_validator(mode="after")
    def _is_chosen_in_one_way(self) -> Shared:
        if bool(self.devices) == any(getattr(self.selectors, key) for key in SharedSelectors.model_fields):
            raise ValueError("want one of devices and selectors")
        if self.devices:
            self.selectors = SharedSelectors(ifNames=self.devices)
        return self


class Exclusive(_Resource):
    """A resource whose functions serve one container at a time. A function belongs to the first matching selector."""

    resourcePrefix: Annotated[str, AfterValidator(prefix)] = "intel.com"
    deviceType: Literal["netDevice"] = "netDevice"
    excludeTopology: bool = False
    selectors: Annotated[list[ExclusiveSelectors], _listed, Field(min_length=1)]
    additionalInfo: dict[str, dict[str, Any]] = {}


class RailNics(_Model):
    """The NICs of a rail group, in the order of the rails. Each NIC is a netdev or a PCI address, as in the key
    `rail.nics` of a network. The configuration's list `rails`, a key of this project, has these objects."""

    group: Annotated[str, AfterValidator(rail.group)]
    nics: Annotated[Texts, Field(min_length=1, max_length=rail.MOST_RAILS)]


class NicSelector(_Model):
    """Selects physical functions that match all keys that are set. Names may end with numbers of VFs: "ens2f0#0-3"."""

    vendor: Code = ""
    deviceID: Code = ""
    pfNames: Ranged = []
    rootDevices: Ranged = []

    @model_validator(mode="after")
    def _chooses(self) -> NicSelector:
        if not any(getattr(self, key) for key in NicSelector.model_fields):
            raise ValueError("want one of pfNames, rootDevices, vendor and deviceID")
        return self


class VfPolicy(_Model):
    """The number and kind of the VFs of selected cards: the spec of a SriovNetworkNodePolicy. When two policies select
    one VF, the policy with the lower `priority` applies or, if these are equal, the first policy."""

    nicSelector: NicSelector
    numVfs: Annotated[int, Field(ge=0, le=MOST_VFS)]
    deviceType: Literal["netdevice", "vfio-pci"] = "netdevice"
    mtu: Annotated[int, Field(ge=68, le=65535)] | None = None
    isRdma: bool = False
    externallyManaged: bool = False
    priority: Annotated[int, Field(ge=0, le=99)] = 99
    linkType: Literal["", "eth", "ETH", "ib", "IB"] = ""
    eSwitchMode: Literal["", "legacy"] = ""
    resourceName: Name | None = None
    excludeTopology: bool = False
    needVhostNet: bool = False

    @property
    def chosen(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Return (name, list of VF ranges) for each name in `pfNames` and `rootDevices`; [] means all VFs."""
        return [spans(text) for text in (*self.nicSelector.pfNames, *self.nicSelector.rootDevices)]

    @property
    def resource(self) -> Exclusive | None:
        """The resource in which sriov-network-operator offers the VFs; None without a resourceName or without VFs."""
        if not self.resourceName or not self.numVfs:
            return None
        every = f"#0-{self.numVfs - 1}"  # without numbers, a card without VFs would itself be offered
        ranged: dict[str, Any] = {
            key: [text if "#" in text else text + every for text in getattr(self.nicSelector, key)] for key in RANGED
        }
        drivers: Texts = [VFIO] if self.deviceType == VFIO else []
        made = MadeSelectors(drivers=drivers, isRdma=self.isRdma, needVhostNet=self.needVhostNet, **ranged)
        names: dict[str, Any] = {"resourceName": self.resourceName, "resourcePrefix": OPERATOR_PREFIX}
        return Exclusive(**names, selectors=[made], excludeTopology=self.excludeTopology)


def spans(ranged: str) -> tuple[str, list[tuple[int, int]]]:
    """Split "NAME#0-3,7" into the name and a list of ranges (first, last), which is [] for "NAME" alone."""
    name, _, numbers = ranged.partition("#")
    parts = [part.partition("-") for part in numbers.split(",") if part]
    return name, [(int(first), int(last or first)) for first, _, last in parts]


def label(text: str, unique: bool = False) -> str:
    """Turn `text` into a name that Kubernetes accepts. The name has a hash if it is too long or must be `unique`."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(plain) <= _LONGEST_NAME and not unique:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_NAME - 9].strip('-')}-{digest}"
