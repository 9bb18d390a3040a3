"""The classes of all errors that a caller of a plugin sees.

Codes up to 99 are those of the spec (SPEC.md, section 5, "Error"), codes from 100 on are railcni's own. The first 250
characters of `msg` must contain cause and remedy, since runtimes wrap the message and cut off its end.
"""

from __future__ import annotations

from collections.abc import Sequence


class CniError(Exception):
    """A failure with the code, message and details that the caller gets on stdout."""

    code = 999

    def __init__(self, msg: str, details: str = "", code: int = 0) -> None:
        super().__init__(msg)
        self.msg = msg
        self.details = details
        if code:
            self.code = code

    def document(self, cni_version: str) -> dict[str, object]:
        """The error object of the spec, for a reply in `cni_version`."""
        reply: dict[str, object] = {"cniVersion": cni_version, "code": self.code, "msg": self.msg}
        details = self.further()
        if details:
            reply["details"] = details
        return reply

    def further(self) -> str:
        """The lines of `details` that `msg` does not contain."""
        return "\n".join(line for line in self.details.splitlines() if line.strip() not in self.msg)


class IncompatibleVersion(CniError):
    """The cniVersion is unknown, or the verb does not exist in this version."""

    code = 1


class UnsupportedField(CniError):
    """A known key has a value that this plugin does not support."""

    code = 2


class InvalidEnvironment(CniError):
    """A CNI_* variable is missing or malformed."""

    code = 4


class IoFailure(CniError):
    """A file or stream cannot be read or written."""

    code = 5


class DecodingFailure(CniError):
    """Stdin, or the reply of a delegated plugin, is not JSON."""

    code = 6


class InvalidConfig(CniError):
    """The network configuration is wrong. The message lists all its faults."""

    code = 7


class InvalidNamespace(CniError):
    """CNI_NETNS is missing, names no network namespace, or names the plugin's own namespace."""

    code = 8


class TryAgainLater(CniError):
    """A transient failure: the same call may succeed later."""

    code = 11


class Lingers(TryAgainLater):
    """A link or device is still in a sandbox that is dead or cannot be found. The kernel may clear it later."""


class Unrestored(TryAgainLater):
    """A device is back on the host, but lacks a part of its former state, which a repeated DEL may restore."""


class NotAvailable(CniError):
    """STATUS: no ADD can succeed now."""

    code = 50


class LimitedConnectivity(CniError):
    """STATUS: no ADD can succeed now, and existing attachments may have no connectivity."""

    code = 51


class AttachmentDiffers(CniError):
    """CHECK: the attachment is not as ADD left it."""

    code = 100


class KernelRefused(CniError):
    """The kernel refused a request, for a known reason."""

    code = 101


class AddressInUse(KernelRefused):
    """Duplicate address detection found `addresses`, with their prefix lengths, in use by other hosts."""

    addresses: Sequence[str] = ()


class DelegateFailed(CniError):
    """A delegated plugin was not found, or failed; `code` is the plugin's own error code if it gave one."""

    code = 102


class StateDamaged(CniError):
    """A file or object that railcni keeps is corrupt."""

    code = 103


class Internal(CniError):
    """A fault of railcni itself."""

    code = 999


def report(faults: list[CniError]) -> None:
    """Raise the first of `faults`, with the other messages added to its details. Do nothing without faults."""
    if not faults:
        return
    first = faults[0]
    first.details = "\n".join(filter(None, [first.details, *(f.msg for f in faults[1:])]))
    raise first
