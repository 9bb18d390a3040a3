"""What a history is made of. Times are CLOCK_MONOTONIC in seconds, one clock for all processes of a machine.

A time that cannot be known is given by bounds on the side that excuses the plugins, so what the checker finds is certain."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

DONE, REFUSED, KILLED = "done", "refused", "killed"


@dataclass(frozen=True)
class Operation:
    """A call of a plugin; `owner` is the pod, which keeps its addresses from sandbox to sandbox.

    `outcome`: DONE; REFUSED, with the CNI error `code`; KILLED. A GC has a `network` and the containers in `spared` alone.
    """

    verb: str
    container: str
    owner: str
    network: str
    began: float
    ended: float
    outcome: str
    addresses: tuple[str, ...] = ()
    code: int = 0
    msg: str = ""
    spared: tuple[str, ...] = ()

    def touches(self, container: str, network: str) -> bool:
        """Whether it may change the attachment of `container`."""
        if self.verb == "GC":
            return self.network == network and container not in self.spared
        return self.container == container


@dataclass(frozen=True)
class Sight:
    """The kernel said, between `after` and `seen`, that `address` is on a link of `container`'s sandbox, or no more."""

    container: str
    address: str
    present: bool
    after: float
    seen: float


@dataclass(frozen=True)
class Dissolved:
    """The sandbox of `container` was given up: its namespace goes, and the link with it."""

    container: str
    at: float


@dataclass(frozen=True)
class Rest:
    """No call was running between `began` and `ended`, and this stood: by container, leased addresses, parts of records,
    and the addresses of links ("" for a link without one). `faults` is what cannot be right by itself."""

    began: float
    ended: float
    leases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    records: dict[str, tuple[str, ...]] = field(default_factory=dict)
    links: dict[str, tuple[str, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


Event = Operation | Sight | Dissolved | Rest
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Operation, Sight, Dissolved, Rest)}


def line(event: Event) -> str:
    """The event as a line of a file."""
    return json.dumps({"kind": type(event).__name__, **asdict(event)})


def parse(lines: Iterable[str]) -> list[Event]:
    """The events of a file."""
    return [_event(json.loads(text)) for text in lines]


def _event(document: dict[str, Any]) -> Event:
    kind = _KINDS[document.pop("kind")]
    event: Event = kind(**{name: _frozen(value) for name, value in document.items()})
    return event


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return value
