"""What Go's rdma-cni keeps on the node, so that its attachments can be ended.

    /var/lib/cni/rdma/NETWORK-CONTAINERID-IFNAME    JSON: containerRdmaDevName, the verbs device's name in the sandbox;
                                                    sandboxRdmaDevName, the same on the host; deviceID, version

Source: pkg/cache and pkg/types of k8snetworkplumbingwg/rdma-cni.
"""

from __future__ import annotations

import posix

from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure
from cni.shared.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.shared.spec.request import Attachment

DIRECTORY = "/var/lib/cni/rdma"
_MOST_BYTES = 1 << 20


def device(attachment: Attachment) -> str:
    """The verbs device that Go's plugin has moved for `attachment`, "" for none; IoFailure when that cannot be read."""
    path = _path(attachment)
    try:
        document = codec.loads_foreign(files.read_regular(path, _MOST_BYTES, posix.O_NOFOLLOW, private=True))
        name = member(document, "containerRdmaDevName") if isinstance(document, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError("it has no containerRdmaDevName")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as fault:
        raise IoFailure(
            f"{path}, in which Go's rdma-cni tells of this attachment, cannot be read: {fault}; repair it, or remove it"
            " when the verbs device is on the host"
        ) from None
    return name


def forget(attachment: Attachment) -> None:
    """Remove the file of an attachment that has ended."""
    path = _path(attachment)
    try:
        posix.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise IoFailure(f"{path} cannot be removed: {fault.strerror}; run as root") from None


def _path(attachment: Attachment) -> str:
    return f"{DIRECTORY}/{'-'.join(attachment.key())}"
