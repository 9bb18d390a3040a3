"""The error tree: every failure that a caller sees is one of these.

    CniError
    |- IncompatibleVersion   1    cniVersion unknown, or the verb is not in that version
    |- UnsupportedField      2    a known key with a value that this plugin cannot honour
    |- InvalidEnvironment    4    a CNI_* variable is missing or malformed
    |- IoFailure             5    a file or stream cannot be read or written
    |- DecodingFailure       6    stdin, or a reply of a delegated plugin, is not JSON
    |- InvalidConfig         7    the network configuration is wrong; carries all its faults
    |- InvalidNamespace      8    CNI_NETNS is missing, no namespace, or the plugin's own
    |- TryAgainLater        11    transient: the same call may succeed later
    |  |- Lingers           11    so does a link or device, in a sandbox that is dead or cannot be found
    |  `- Unrestored        11    a device is on the host again, without a part of its state that a second DEL can give back
    |- NotAvailable         50    STATUS: no ADD can be served
    |- LimitedConnectivity  51    STATUS: no ADD, and attachments may be cut off
    |- AttachmentDiffers   100    CHECK: the attachment is not as ADD left it
    |- KernelRefused       101    the kernel refused, for a reason that has a name
    |- DelegateFailed      102    a delegated plugin failed without a code of its own
    |- StateDamaged        103    a file that we keep is corrupt; it was set aside
    `- Internal            999    a fault of railcni itself

Codes up to 99 are the spec's (SPEC.md, section 5, "Error"); from 100 on they are railcni's own.
The first 250 characters of `msg` must hold cause and remedy: runtimes wrap and cut the rest.
"""

from __future__ import annotations


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
        """The error object of the spec, for `cni_version`."""
        reply: dict[str, object] = {"cniVersion": cni_version, "code": self.code, "msg": self.msg}
        if self.details:
            reply["details"] = self.details
        return reply


class IncompatibleVersion(CniError):
    code = 1


class UnsupportedField(CniError):
    code = 2


class InvalidEnvironment(CniError):
    code = 4


class IoFailure(CniError):
    code = 5


class DecodingFailure(CniError):
    code = 6


class InvalidConfig(CniError):
    code = 7


class InvalidNamespace(CniError):
    code = 8


class TryAgainLater(CniError):
    code = 11


class Lingers(TryAgainLater):
    """A link or device is not gone from its sandbox yet: the kernel clears a dead one some time after its end."""


class Unrestored(TryAgainLater):
    """A device is on the host again, and a part of its state was refused or not read, as may not happen a second time."""


class NotAvailable(CniError):
    code = 50


class LimitedConnectivity(CniError):
    code = 51


class AttachmentDiffers(CniError):
    code = 100


class KernelRefused(CniError):
    code = 101


class DelegateFailed(CniError):
    code = 102


class StateDamaged(CniError):
    code = 103


class Internal(CniError):
    code = 999
