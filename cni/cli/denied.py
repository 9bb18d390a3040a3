"""Whether something failed because this user may not do it."""

from __future__ import annotations

import errno
import os

REMEDY = "run it as root"


def is_denied(fault: object) -> bool:
    """Whether `fault`, an error or its text, is that this user, who is not root, lacks the rights."""
    return os.geteuid() != 0 and any(os.strerror(number) in str(fault) for number in (errno.EACCES, errno.EPERM))
