"""The configuration of resources. A file may have the `configList` of the RDMA shared device plugin and the
`resourceList` of the SR-IOV device plugin, both unchanged. It may also have the wanted virtual functions
(`virtualFunctions`, or objects of sriov-network-operator), and the NICs of each rail group (`rails`). As in Go's
encoding/json, keys match in any case, null counts as absent, and unknown keys are ignored, but with a warning.

If a member of a list has a fault, only this member is ignored. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from cni.documents import reader
from cni.documents.diagnostic import ERROR, Diagnostic, Scope, correction, shown
from cni.documents.tree import Keys, Text, TreeNode, value_at
from cni.resources import models
from cni.resources.models import FIXES, VFIO, Exclusive, NicSelector, RailNics, Shared, VfPolicy

PERIOD = 60.0  # seconds
_MODELS: dict[str, type[Shared | Exclusive]] = {"configList": Shared, "resourceList": Exclusive}
_POLICIES, _RAILS = "virtualFunctions", "rails"
_KIND = "SriovNetworkNodePolicy"
_CONFIG_MAP = "ConfigMap"
LISTS = (*_MODELS, _POLICIES)
_ABOVE = {"periodicUpdateInterval", _RAILS, *LISTS}
_UNSERVED = {"acpiIndexes", "ddpProfiles", "pKeys", "vdpaType", "auxTypes"}  # selectors that are refused here
_UNMADE = {"netFilter", "vdpaType", "bridge"}  # keys of sriov-network-operator that are refused here
_UNASKED = {"nodeSelector"}


@dataclass
class Config:
    """The content of all configuration files. `policies` are sorted by precedence. `period` is the time, in seconds,
    between two readings of the devices; 0 means that they are read once. `findings` are the faults and unknown keys.
    `is_whole` is False when a whole file could not be read, so that its resources are unknown."""

    resources: list[Shared | Exclusive] = field(default_factory=list)
    policies: list[VfPolicy] = field(default_factory=list)
    rails: list[RailNics] = field(default_factory=list)
    period: float = PERIOD
    findings: list[Diagnostic] = field(default_factory=list)
    is_whole: bool = True


def read(files: Iterable[tuple[str, str]]) -> Config:
    """Return the configuration of all `files`, each as (path, text)."""
    config = Config()
    left = list(files)
    while left:
        path, text = left.pop(0)
        before, empty = len(config.findings), Scope(Text(path, text), TreeNode(0, 0), config.findings)
        if not text.strip():
            empty.error((), "the file is empty", 'write {"configList": [...]}')
            config.is_whole = False
            continue
        scopes = [part for _, scope in reader.documents(path, text, config.findings) for part in reader.objects(scope)]
        if len(config.findings) > before:
            config.is_whole = False
            continue
        for scope in scopes or [empty]:
            root = scope.root.data
            if isinstance(root, dict) and root.get("kind") == _CONFIG_MAP and isinstance(root.get("data"), dict):
                left += [(f"{path}, {key}", str(inner)) for key, inner in root["data"].items()]
            else:
                read_document(scope, config)
    config.policies.sort(key=lambda policy: policy.priority)
    return config


def is_own(document: Any) -> bool:
    """Whether a document is a configuration of a device plugin."""
    return isinstance(document, dict) and any(str(key).lower() in map(str.lower, LISTS) for key in document)


def read_document(scope: Scope, config: Config) -> None:
    """Add the content of the document in `scope` to `config`. Both have the same list of findings."""
    root = scope.root
    if isinstance(root.data, dict) and root.data.get("kind") == _KIND:
        _policy(scope, ("spec",), root.data.get("spec"), config)
        return
    if not isinstance(root.data, dict) or not any(map(root.member, LISTS)):
        message = f"want an object with {', '.join(_MODELS)} or {_POLICIES}, or a {_KIND}"
        scope.error((), message, 'write {"configList": [...]}')
        config.is_whole = False
        return
    _check_keys(scope, (), root.data, _ABOVE)
    if "periodicUpdateInterval" in root.data:
        config.period = _period(scope, root.data["periodicUpdateInterval"])
    for key, model in _MODELS.items():
        for number, given in _members(scope, key):
            _resource(scope, (key, number), given, model, config)
    for number, given in _members(scope, _POLICIES):
        _policy(scope, (_POLICIES, number), given, config)
    for number, given in _members(scope, _RAILS):
        _check_keys(scope, (_RAILS, number), given, {*RailNics.model_fields})
        if rails := scope.model(RailNics, given, (_RAILS, number), FIXES):
            config.rails.append(rails)
            nics = [nic for one in config.rails for nic in one.nics]
            if twice := next((nic for nic in nics if nics.count(nic) > 1), ""):
                scope.error((_RAILS, number, "nics"), f"{twice} is a rail twice: the first one counts", FIXES["nics"])


def _members(scope: Scope, key: str) -> list[tuple[int, Any]]:
    """Return (index, value) of each member of the list `key`. Add a fault if `key` is no list, or is empty."""
    member = scope.root.member(key)
    if member is None:
        return []
    if member.node.items is None:
        scope.error((key,), f"{shown(member.node.data)}: want a list", f'write "{key}": [...]')
    elif not member.node.items:
        scope.warn((key,), f"{key} is empty: nothing is offered by it", "add a member, or remove the key")
    return [(number, node.data) for number, node in enumerate(member.node.items or [])]


def _policy(scope: Scope, keys: Keys, given: Any, config: Config) -> None:
    before = len(config.findings)
    why, remedy = "this is not made here", "leave this policy to sriov-network-operator"
    for part, within, model in ((given, (), VfPolicy), (value_at(given, "nicSelector"), ("nicSelector",), NicSelector)):
        _check_keys(scope, (*keys, *within), part, {*model.model_fields, *_UNASKED}, _UNMADE, why, remedy)
    policy: VfPolicy | None = scope.model(VfPolicy, given, keys, models.POLICY_FIXES)
    if policy is not None:
        check_policy(scope, keys, policy.nicSelector, policy.numVfs, policy.isRdma and policy.deviceType == VFIO)
    if policy is None or any(f.severity == ERROR for f in config.findings[before:]):
        return
    if given.get("nodeSelector"):
        message, fix = "labels of nodes are not read here", "give the file to these nodes alone"
        scope.warn((*keys, "nodeSelector"), message, fix, at_key=True)
    config.policies.append(policy)
    if policy.resourceName and not policy.chosen:
        fix = "add pfNames or rootDevices, or a resource to resourceList"
        scope.warn((*keys, "resourceName"), "without names of cards no resource is offered by it", fix)
    elif resource := policy.resource:
        of_policies = (one for one in config.resources if isinstance(one, Exclusive) and one.name == resource.name)
        if same := next(of_policies, None):
            same.selectors += resource.selectors
        else:
            config.resources.append(resource)


def check_policy(scope: Scope, keys: Keys, selector: NicSelector, number: int, has_rdma_and_vfio: bool) -> None:
    """Add the errors of the policy at the path `keys` to the findings of `scope`: VFs in `selector` beyond the policy's
    `number` of VFs, and RDMA for VFs with the driver vfio-pci. `railcni nad lint` calls this too."""
    if has_rdma_and_vfio:
        message = f"{VFIO} with isRdma: a VF of {VFIO} has neither netdev nor verbs device"
        scope.error((*keys, "deviceType"), message, "write deviceType: netdevice")
    for key in models.RANGED:
        for place, text in enumerate(getattr(selector, key)):
            if number and any(last >= number for _, last in models.spans(text)[1]):
                message = f"{text}: numVfs {number} makes the VFs 0 to {number - 1}"
                scope.error((*keys, "nicSelector", key, place), message, "raise numVfs, or name VFs that it makes")


def _resource(scope: Scope, keys: Keys, given: Any, model: type[Shared | Exclusive], config: Config) -> None:
    before = len(config.findings)
    why, selectors = "this device plugin cannot choose by it", value_at(given, "selectors")
    is_list = isinstance(selectors, list) and model is Exclusive
    fields = (models.SharedSelectors if model is Shared else models.ExclusiveSelectors).model_fields
    for number, one in enumerate(selectors if is_list else [selectors]):
        place = (*keys, "selectors", *([number] if is_list else []))
        _check_keys(scope, place, one, {*fields}, _UNSERVED, why, models.OTHER_PLUGIN)
    _check_keys(scope, keys, given, {*model.model_fields})
    resource = scope.model(model, given, keys, FIXES)
    if resource is None or any(f.severity == ERROR for f in config.findings[before:]):
        return
    if resource.name in {other.name for other in config.resources}:
        message = f"{resource.name} is there already: the first one counts"
        scope.error((*keys, "resourceName"), message, "give it another name")
        return
    config.resources.append(resource)


def _check_keys(
    scope: Scope, keys: Keys, given: Any, names: set[str], refused: Set[str] = frozenset(), why: str = "", fix: str = ""
) -> None:
    """Add an error with the texts `why` and `fix` for each key in `refused` that has a value in the object `given`.
    Warn of each key of `given` that is in neither `names` nor `refused`. The case of keys is ignored."""
    for key in sorted(name for name in refused if value_at(given, name)):
        scope.error((*keys, key), f"{key}: {why}", fix, at_key=True)
    folded = {name.lower() for name in names | refused}
    for key in given if isinstance(given, dict) else ():
        if key.lower() not in folded:
            scope.warn((*keys, key), f'there is no key "{key}"', correction(key, names | refused), at_key=True)


def _period(scope: Scope, given: Any) -> float:
    if given is None:
        return PERIOD
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        message = f"{shown(given)}: want seconds, 0 or more; {PERIOD:g} are used"
        scope.error(("periodicUpdateInterval",), message, 'write "periodicUpdateInterval": 60')
        return PERIOD
    return float(given)
