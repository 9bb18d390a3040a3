"""Check a network configuration by its keys, and fill an object with the values.

A plugin declares each key as an attribute of a class, and `keys_of` returns the table of the keys. `fill` reads the
values from a JSON object into the attributes of an object. It collects all faults, so that an author sees them at once.
Keys match without regard to case, unknown keys are ignored, and null means absent. Go's encoding/json has the same
rules, and existing configurations rely on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import Request, fold, member

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

_MOST_CHARACTERS = 4095  # of a string: the longest path, PATH_MAX without its final zero
MOST_MEMBERS = 1000  # of a list: some checks compare each pair of members
_MOST_FAULTS = 100
_NETDEV_BYTES = 127
_HEX = frozenset("0123456789abcdefABCDEF")

OF_RUNTIMES = (
    "type", "name", "cniVersion", "cniVersions", "capabilities", "runtimeConfig", "args", "prevResult", "dns",
    "ipam",
)  # fmt: skip
"""The keys that the runtime reads or writes, the same for every plugin (SPEC.md, section 1, and CONVENTIONS.md)."""
OF_FEATURES = ("rail", "rdma")  # keys of every link plugin; in this module, since few calls load cni.link.features


PLAIN = "plain"  # the default of rail.addressing


class Key:
    """A key of a configuration. `fill` sets an attribute to the value of the key, or to `default` if the key is absent.

    `read` checks the JSON value and returns the value of the attribute. Its ValueError states the wanted form. `doc` is
    the description of the key. If the value is a path, `roots` is the key of the node's policy (cni.shared.policy) that
    lists the directories for the path. The key has the name of the attribute that declares it, unless `name` is given.
    """

    def __init__(self, read: Callable[[Any], Any], default: Any = None, name: str = "", roots: str = "") -> None:
        self.read = read
        self.default = default
        self.name = self.attribute = name
        self.roots = roots
        self.doc = ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = self.name or attribute

    def means(self, doc: str) -> Key:
        """Set the description `doc`, and return the key."""
        self.doc = doc
        return self


declare: Any = Key  # of an attribute: `mtu: int = declare(integer(0, 65535), 0).means("the MTU")`


def keys_of(declaring: type) -> Sequence[Key]:
    """The keys that a class declares, and then those of its base classes."""
    return tuple(one for base in declaring.__mro__ for one in vars(base).values() if isinstance(one, Key))


class Fault:
    """A key with a wrong value. `wanted` describes a right value. `details` goes into the details of the CNI error."""

    def __init__(self, key: str, value: object, wanted: str, details: str = "") -> None:
        self.key = key
        self.value = value
        self.wanted = wanted
        self.details = details

    def __str__(self) -> str:
        return f"{self.key} {codec.shown(self.value)}: {self.wanted}"


def fill(
    target: object, table: Sequence[Key], document: Mapping[str, Any], faults: list[Fault], prefix: str = ""
) -> None:
    """Set the attribute of each key in `table` on `target`, to the value in `document` or to the default. Append a
    fault to `faults` for each wrong value. `prefix` comes before the name of the key in a fault."""
    folded = fold(document)
    values = {key.attribute: key.default for key in table}
    for key in table:
        value = document[key.name] if key.name in document else folded.get(key.name.lower())
        if value is None:
            continue
        try:
            values[key.attribute] = key.read(value)
        except ValueError as fault:
            faults.append(Fault(prefix + key.name, value, str(fault)))
    vars(target).update(values)


def take(
    target: object, attribute: str, read: Callable[[Any], Any], faults: list[Fault], given: Sequence[tuple[str, Any]]
) -> None:
    """Set `attribute` of `target` to the last valid value in `given`, as `read` returns it. `given` has pairs (name of
    the source, value). Ignore empty values. Append a fault for each invalid value to `faults`."""
    for place, value in given:
        if value:
            try:
                setattr(target, attribute, read(value))
            except ValueError as fault:
                faults.append(Fault(place, value, str(fault)))


def attempt(read: Callable[[str], T], text: str, key: str, faults: list[Fault]) -> T | None:
    """Return `read(text)`. If `read` raises ValueError, append a fault of the key `key` to `faults` and return None."""
    try:
        return read(text)
    except ValueError as fault:
        faults.append(Fault(key, text, str(fault)))
        return None


def misspelt(document: Mapping[str, Any], names: Collection[str], prefix: str = "") -> list[str]:
    """A warning for each key of `document` that is probably a misspelling of one of `names` (see `slip`)."""
    other = document.keys() - names
    if not other:
        return []
    known = {name.lower(): name for name in names}
    found = [(key, slip(key, known.values())) for key in document if key in other and key.lower() not in known]
    return [f'there is no key {prefix}{key[:60]}, and it is ignored: write "{meant}"' for key, meant in found if meant]


def slip(word: str, names: Iterable[str]) -> str:
    """The first of `names` from which `word` differs by one missing, extra or wrong letter, or by two exchanged
    adjacent letters; "" when there is none. The case of letters is ignored."""
    for name in names:
        ours, theirs = word.lower(), name.lower()
        while ours and theirs and ours[0] == theirs[0]:
            ours, theirs = ours[1:], theirs[1:]
        while ours and theirs and ours[-1] == theirs[-1]:
            ours, theirs = ours[:-1], theirs[:-1]
        if max(len(ours), len(theirs)) == 1 or (len(ours) == 2 and ours == theirs[::-1]):
            return name
    return ""


def refuse(faults: Sequence[Fault | CniError]) -> None:
    """Raise InvalidConfig with the texts of the first 100 `faults`. Do nothing when there are none."""
    if not faults:
        return
    texts = [str(f) for f in faults[:_MOST_FAULTS]]
    if len(faults) > _MOST_FAULTS:
        texts.append(f"and {len(faults) - _MOST_FAULTS} more")
    msg = "; ".join(texts)
    if len(texts) > 1:
        msg = f"{len(faults)} faults in the network configuration: {msg}"
    raise InvalidConfig(msg, "\n".join(filter(None, (f.details for f in faults[:_MOST_FAULTS]))))


def string(value: Any) -> str:
    """Check that `value` is a string, and return it."""
    if not isinstance(value, str):
        raise ValueError("want a string")
    if len(value) > _MOST_CHARACTERS or "\0" in value:
        raise ValueError(f"want at most {_MOST_CHARACTERS} characters, none of them a zero")
    return value


def netdev(value: Any) -> str:
    """Check that `value` can be the name or alternative name of a netdev (ALTIFNAMSIZ, linux/if.h), and return it."""
    name = string(value)
    if len(name.encode()) > _NETDEV_BYTES or "/" in name or name.split() != [name]:
        raise ValueError("want the name of a netdev, such as ens2f0")
    return name


def boolean(value: Any) -> bool:
    """Check that `value` is a boolean, and return it."""
    if not isinstance(value, bool):
        raise ValueError("want true or false")
    return value


def integer(low: int, high: int) -> Callable[[Any], int]:
    """A function that checks an integer from `low` to `high`, both included, and returns it."""

    def read(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise ValueError(f"want an integer from {low} to {high}")

    return read


def one_of(*choices: str) -> Callable[[Any], str]:
    """A function that checks that a string is one of `choices`, and returns it."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"want one of {', '.join(choices)}")
        return str(value)

    return read


def mapping(value: Any) -> dict[str, Any]:
    """Check that `value` is a JSON object, and return it."""
    if not isinstance(value, dict):
        raise ValueError("want a JSON object")
    return value


def ipam_block(value: Any) -> dict[str, Any]:
    """Check the object `ipam`, and return it. Without `type`, the IPAM plugin's name, the link gets no addresses."""
    block = mapping(value)
    kind = member(block, "type")
    if kind is not None and not isinstance(kind, str):
        raise ValueError("want a string as its type, the name of an IPAM plugin")
    return block


def dns_settings(value: Any) -> dict[str, Any]:
    """Check the object `dns`, and return it. A runtime would refuse a result with `dns` members of wrong types."""
    settings = mapping(value)
    for name, read in (("domain", string), *((name, list_of(string)) for name in ("nameservers", "search", "options"))):
        found = member(settings, name)
        try:
            if found is not None:
                read(found)
        except ValueError as fault:
            raise ValueError(f"{fault} as its `{name}`") from None
    return settings


def asks_for_same_index(request: Request) -> bool:
    """Whether `rail.addressing` is set and not "plain": a pod then has the same index in the range of each rail."""
    return member(request.member("rail"), "addressing") not in (None, PLAIN)


def list_of(read: Callable[[Any], Any], most: int = MOST_MEMBERS) -> Callable[[Any], list[Any]]:
    """A function that checks a list of up to `most` members, and returns the list of `read(member)`."""

    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError("want a list")
        if len(value) > most:
            raise ValueError(f"has {len(value)} members: want {most} at most")
        return [read(v) for v in value]

    return read_all


def hardware_address(value: Any) -> str:
    """Check a unicast MAC and return it as "aa:bb:cc:dd:ee:ff". Like Go, accept "-" for ":", and "aabb.ccdd.eeff"."""
    text = string(value)
    words = text.split(".")
    if len(words) == 3 and all(len(word) == 4 for word in words):
        text = ":".join(part for word in words for part in (word[:2], word[2:]))
    parts = text.replace("-", ":").split(":")
    if len(parts) != 6 or not all(1 <= len(p) <= 2 and _HEX.issuperset(p) for p in parts):
        raise ValueError("want a MAC address such as 02:00:00:00:00:01")
    octets = [int(p, 16) for p in parts]
    if octets[0] & 1:
        raise ValueError("is a multicast address: the lowest bit of the first byte must be 0")
    if not any(octets):
        raise ValueError("is all zeros: want a MAC address such as 02:00:00:00:00:01")
    return ":".join(f"{o:02x}" for o in octets)


def optional(read: Callable[[Any], Any], empty: Any = "") -> Callable[[Any], Any]:
    """A function that returns `empty` for "", which means absent in Go, and otherwise calls `read`."""

    def read_unless_empty(value: Any) -> Any:
        return empty if value == "" else read(value)

    return read_unless_empty
