"""The code that the link plugins share: common keys, the facts of a survey, recorded plans, texts of differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from cni.shared.config import Fault, Key, boolean, declare, dns_settings, fill, ipam_block, keys_of
from cni.shared.log import Log
from cni.shared.records import HeldLock
from cni.shared.spec.request import Attachment, Request


class LinkConfig:
    """The keys that each link plugin has, and their checked values. A plugin's class declares more keys; `KEYS` has all."""

    KEYS: Sequence[Key]

    dad: bool = declare(boolean, False).means("wait for duplicate address detection of IPv6 addresses")
    ipam: dict[str, Any] = declare(ipam_block, {}).means("the IPAM plugin's configuration; absent or {}: no addresses")
    dns: dict[str, Any] = declare(dns_settings, {}).means("DNS settings for the result; default: the IPAM plugin's")

    def __init_subclass__(cls) -> None:
        cls.KEYS = keys_of(cls)

    def __init__(self, request: Request, faults: list[Fault]) -> None:
        fill(self, self.KEYS, request.config, faults)


class RecordedPlan:
    """The plan of an ADD: all its decisions, made before the first side effect. A plugin's plan has more attributes.

    `name` is the link's name in the sandbox. `mtu` is in bytes, 0 when there is no link and no configured MTU. `pci` is
    the PCI address for the result, "" for none. The attributes are the members of `document`, which is in the record.
    """

    name: str
    mtu: int
    pci: str

    def __init__(self, document: dict[str, Any]) -> None:
        self.__dict__.update(document)

    def document(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Facts:
    """The result of a survey, on which the plan depends. The end of its `with` block releases `lock`.

    `holder` is the attachment that has the device. If Go's plugin made this attachment, `holder` is the path of the
    sandbox. It is None or "" for a free device. `lock` keeps other ADDs from the device until the record is written.
    """

    holder: Attachment | str | None = None
    lock: HeldLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock:
            self.lock.release()


def keep_log(request: Request, log: Log) -> None:
    """Leave `log` as it is. This is the `direct_log` of a plugin without keys for a log."""


_UNKNOWN = (None, "")


def differs(key: str, now: Any, was: Any, configured: Any = None) -> list[str]:
    """A list of one text if the value `now` of `key` differs from `was` or from `configured`; otherwise [].

    None and "" are not compared. In `now` they mean that the kernel does not show the value, in `was` that the kernel
    chose the value, in `configured` that the configuration does not have the key.
    """
    if now in _UNKNOWN:
        return []
    words = "" if was in (*_UNKNOWN, now) else f", was {was}"
    if configured not in (*_UNKNOWN, now) and (not words or configured != was):
        words += f", configured is {configured}"
    return [f"{key} is {now}{words}"] if words else []
