"""The configuration space of a PCI function, the file `config` of sysfs. Pure.

Others than root get its first 64 bytes alone, where no capability is. Registers are those of
include/uapi/linux/pci_regs.h: capabilities form a list from 0x34 on, extended ones another from 0x100 on.
"""

from __future__ import annotations

from collections.abc import Iterator

_FIRST, _FIRST_EXTENDED = 0x34, 0x100
_EXPRESS, _ACS = 0x10, 0x0D
_DEVICE_CONTROL, _RELAXED_ORDERING = 8, 0x0010
_ACS_CONTROL, _REDIRECTS = 6, 0x0004 | 0x0008 | 0x0010  # of requests, of completions, upstream forwarding
_MOST = 96  # capabilities; a list that is damaged may be a ring


def relaxed_ordering(config: bytes) -> bool | None:
    """Whether the function may relax the order of its writes; None when that cannot be read."""
    for kind, at in _capabilities(config):
        if kind == _EXPRESS and at + _DEVICE_CONTROL + 2 <= len(config):
            return bool(_word(config, at + _DEVICE_CONTROL) & _RELAXED_ORDERING)
    return None


def redirects_peers(config: bytes) -> bool | None:
    """Whether ACS of a bridge sends what devices below it say to one another up to the host bridge; None: unread."""
    if len(config) <= _FIRST_EXTENDED:
        return None
    for kind, at in _extended(config):
        if kind == _ACS and at + _ACS_CONTROL + 2 <= len(config):
            return bool(_word(config, at + _ACS_CONTROL) & _REDIRECTS)
    return False


def _capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    at = config[_FIRST] & ~3 if len(config) > 0x40 else 0
    for _ in range(_MOST):
        if not 0x40 <= at <= min(len(config), 0x100) - 2:
            return
        yield config[at], at
        at = config[at + 1] & ~3


def _extended(config: bytes) -> Iterator[tuple[int, int]]:
    at = _FIRST_EXTENDED
    for _ in range(_MOST):
        if not _FIRST_EXTENDED <= at <= len(config) - 4:
            return
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, at
        at = header >> 20 & ~3


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")
