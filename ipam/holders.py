"""An index of the node's records by address: the attachment that holds an address, for the search of an ADD.

A link per address in the folder `held` of the state directory, whose target names the attachment; its record has the last word,
so a link that is left or lost changes no lease. A folder that is missing is made from the records.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.request import Attachment
from ipam import records as ipam_records
from ipam.records import PART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cni.shared.records import Records
    from ipam.leases import Want


def note(records: Records, attachment: Attachment, wants: Sequence[Want]) -> None:
    """Let the index say that `attachment` holds the addresses of `wants`."""
    target = codec.dumps(list(attachment.key()))
    for want in wants:
        path = _path(records, want)
        try:
            _make_folder(records)
            forget(records, [want])
            os.symlink(target, path)
        except OSError as fault:
            records.log.debug(f"{want.text} is not in the index of held addresses: {fault}")


def forget(records: Records, wants: Sequence[Want]) -> None:
    """Remove the addresses of `wants` from the index."""
    for want in wants:
        try:
            os.unlink(_path(records, want))
        except OSError:
            pass  # it is in none


def holder(records: Records, want: Want) -> Attachment | None:
    """The attachment that holds the address of `want` by the index; None for none."""
    try:
        _make_folder(records)
        return Attachment(*codec.loads(os.readlink(_path(records, want)).encode()))
    except (OSError, ValueError, TypeError):
        return None


def _path(records: Records, want: Want) -> str:
    space = f"pool {want.pool}" if want.scope is None else f"scope {want.scope}"
    digest = hashlib.blake2b(f"{space}\0{want.text}".encode("utf-8", "surrogateescape"), digest_size=16)
    return f"{records.directory}/held/{digest.hexdigest()}"


def _make_folder(records: Records) -> None:
    """Make the index of the present records, if there is none."""
    try:
        os.stat(records.directory + "/held")
        return
    except FileNotFoundError:
        files.make_private_directory(records.directory + "/held")
    for attachment, _, record in records.all(PART):
        try:
            note(records, attachment, ipam_records.leases(attachment, record))
        except ValueError:
            pass  # the next verb that reads the record says so
