"""Conversion of leases to AddressLease objects and back, for the store `addresslease`. Pure: no I/O, no clock.

Each address is one object, like the IPAddress objects of Services (KEP-1880). An object's name is the address and the
space in which the address is unique: the scope of the lease, or its pool when the lease has no scope.

    10.0.0.7                          scope ""
    10.0.0.7.net.blue                 scope "blue"
    10.0.0.7.pool.10.0.0.0-24         no scope, pool 10.0.0.0-24
    former.0123456789abcdef...        the former addresses of the pod with this hash
    fd00-0-0-0-0-0-0-7.net.blue       an IPv6 address with all eight groups

A name is a DNS subdomain of at most 253 characters, and a label value has at most 63. A hash replaces longer texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipam.leases import COOLDOWN, Lease, Want
from ipam.ranges import format_address, network_name_of, parse_address
from ipam.stores.apiserver import resources
from ipam.stores.apiserver.resources import ALNUM, replacement
from ipam.stores.served import from_json, to_json

API_VERSION = "railcni.io/v1alpha1"
POOL, STATE, HELD = resources.ADDRESS_POOL, resources.ADDRESS_STATE, resources.HELD
label, hashed = resources.label, resources.hashed
NODE, SPACE, BLOCK = "railcni.io/node", "railcni.io/space", "railcni.io/block"
ATTACHMENT, POD, FENCE = "railcni.io/attachment", "railcni.io/pod", "railcni.io/fence"
ABANDONED = "railcni.io/abandoned"  # for a lease that is freed because its node is gone: conf/kubernetes/admission.yaml
COOLING, FORMER = "cooling", "former"
NAMES = "railcni.io/names"  # annotation of an IPPool: the kinds of names of its AddressLeases, "net", "pool" or both
LATE_SECONDS = 600  # the longest time for which a request with a lost reply may still arrive
BLOCK_SIZE = 256  # addresses that have one label BLOCK in common

_LONGEST_NAME = 253
_POD = ("namespace", "name", "uid")
_UNTOLD = {**dict.fromkeys(("node", "bootID", "netns"), ""), "scope": None}


def name_of(place: Want) -> str:
    """The name of the AddressLease for the address of `place`."""
    address = format_address(place.family, place.value)
    if place.family == 6:
        address = "-".join(f"{place.value >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))
    space = "" if place.scope == "" else _space(place.pool, place.scope)
    return f"{address}.{space}" if space else address


def twin_name(want: Want) -> str:
    """The other possible name of the object for `want`: with the pool instead of the scope, or vice versa."""
    other = None
    if want.scope is None:
        try:
            other = network_name_of(want.pool, want.family, want.value)
        except ValueError:
            other = ""  # no configuration names a pool like this
    return name_of(Want(*want.place, other))


def memory_name(pod: tuple[str, str, str], ifname: str) -> str:
    """The name of the object with the former addresses of a pod's interface."""
    return f"former.{hashed(*pod[:2], ifname)}"


def address_of(name: str) -> tuple[int, int]:
    """(family, value) of the address in an object's name. Raises ValueError for a name without an address."""
    first = name.partition(".")[0]
    return parse_address(first.replace("-", ":") if "-" in first else ".".join(name.split(".", 4)[:4]))


def space_of(name: str) -> str:
    """The part of an object's name after the address, such as "net.blue"; "" for the scope ""."""
    parts = 1 if "-" in name.partition(".")[0] else 4  # of the address
    return ".".join(name.split(".")[parts:])


def _space(pool: str, scope: str | None) -> str:
    kind, text = ("pool", pool) if scope is None else ("net", scope)
    fits = is_subdomain(text) and len(text) <= _LONGEST_NAME - 45
    return f"{kind}.{text}" if fits else f"{kind}-{hashed(text)}"


def is_subdomain(text: str) -> bool:
    """Whether `text` is a DNS subdomain of any length."""
    parts = text.split(".")
    return all(p and p[0] in ALNUM and p[-1] in ALNUM and all(c in ALNUM or c == "-" for c in p) for p in parts)


def selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def space_label(pool: str, scope: str | None) -> str:
    return label(_space(pool, scope) if scope != "" else "net")


def block_label(family: int, value: int) -> str:
    return f"{family}-{value // BLOCK_SIZE:x}"


def document(lease: Lease, state: str = HELD) -> dict[str, Any]:
    """The AddressLease of `lease` as JSON."""
    labels = {
        NODE: label(lease.node),
        POOL: label(lease.pool),
        SPACE: space_label(lease.pool, lease.scope),
        BLOCK: block_label(lease.family, lease.value),
        STATE: state,
        ATTACHMENT: hashed(*lease.attachment.key()),
    }
    if lease.pod[1]:
        labels[POD] = hashed(*lease.pod_name, lease.ifname)
    spec = {
        **to_json(lease),
        "pod": dict(zip(_POD, lease.pod, strict=True)),
        "machineID": lease.machine,
        "state": state,
    }
    spec.pop("machine", None)
    if lease.scope is None:
        del spec["scope"]
    return {
        "apiVersion": API_VERSION,
        "kind": "AddressLease",
        "metadata": {"name": name_of(lease), "labels": labels},
        "spec": spec,
    }


def memory(lease: Lease, now_ns: int) -> dict[str, Any]:
    """The object, as JSON, that remembers the address of `lease` for its pod."""
    found = document(lease, FORMER)
    found["metadata"] = {
        "name": memory_name(lease.pod, lease.ifname),
        "labels": {STATE: FORMER, POD: found["metadata"]["labels"][POD]},
    }
    found["spec"] |= {"sequence": now_ns, "former": {lease.pool: found["spec"]["address"]}}
    return found


def is_recent(time_ns: int, now_ns: int) -> bool:
    """Whether a request of `time_ns` may still arrive. A time after `now_ns` + COOLDOWN comes from a wrong clock."""
    return -COOLDOWN < (now_ns - time_ns) / 1e9 < LATE_SECONDS


class Entry:
    """An AddressLease as it was read. `lease` is its lease, or its last lease if the address is no longer `held`."""

    __slots__ = ("labels", "lease", "name", "spec", "state", "uid", "until", "version")

    def __init__(self, read: dict[str, Any]) -> None:
        """Read address, and scope or pool, from the immutable name. Raises ValueError for a name without an address."""
        metadata = read.get("metadata") or {}
        self.name: str = metadata.get("name") or ""
        self.uid: str = metadata.get("uid") or ""
        self.version: str = metadata.get("resourceVersion") or ""
        self.labels: dict[str, str] = metadata.get("labels") or {}
        self.spec: dict[str, Any] = read.get("spec") or {}
        self.state = self.spec.get("state")
        until = self.spec.get("until")
        self.until = until if isinstance(until, int) else 0
        pod, machine = self.spec.get("pod") or {}, self.spec.get("machineID") or ""
        known = {**_UNTOLD, **self.spec, "pod": [pod.get(key) or "" for key in _POD], "machine": machine}
        self.lease = from_json(known)
        if self.state != FORMER:
            self.lease.family, self.lease.value = address_of(self.name)
            kind, _, text = space_of(self.name).partition(".")
            if kind in ("", "net"):
                self.lease.scope = text
            elif kind == "pool":
                self.lease.pool, self.lease.scope = text, None
            if name_of(self.lease) != self.name:
                raise ValueError

    @property
    def held(self) -> bool:
        return self.state == HELD

    @property
    def former(self) -> dict[str, str]:
        """The pod's former addresses by pool; {} for an object that holds or held an address."""
        found = self.spec.get("former")
        return found if isinstance(found, dict) else {}

    def is_of(self, lease: Lease) -> bool:
        """Whether the object holds the address for `lease`, and not for another claim."""
        return self.held and self.lease.key() == lease.key()

    def cools(self, now: float) -> bool:
        """Whether the cooldown lasts at `now` (s since 1970). Ignores an end after `now` + COOLDOWN (wrong clock)."""
        return self.state == COOLING and 0 < self.until - now <= COOLDOWN + 1

    def is_fenced(self, now_ns: int) -> bool:
        """Whether a late create or takeover of this address may still arrive. Ignores a mark after `now_ns` +
        COOLDOWN (wrong clock)."""
        mark = self.labels.get(FENCE, "")
        return mark.isascii() and mark.isdigit() and is_recent(int(mark), now_ns)

    def freed(self, now_ns: int, cooldown: int) -> dict[str, Any]:
        """Labels and spec after a release. With `cooldown` 0 (seconds), the object only makes late creates fail."""
        until = now_ns // 1_000_000_000 + cooldown + 1 if cooldown else 0  # the current second does not count
        state = COOLING if cooldown else FORMER
        spec = {**self.spec, "sequence": now_ns, "state": state}
        spec.pop("until", None)
        if until:
            spec["until"] = until
        return {"metadata": {"labels": {**self.labels, STATE: state}}, "spec": spec}

    def replacement(self, new: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON patch that sets labels and spec to those of `new`. It fails if the object has changed since."""
        own = (NODE, POOL, SPACE, BLOCK, STATE, ATTACHMENT, POD, ABANDONED)
        of_others = {key: value for key, value in self.labels.items() if key not in own}
        members = {"/metadata/labels": of_others | new["metadata"]["labels"], "/spec": new["spec"]}
        return replacement(self.uid, self.version, members)
