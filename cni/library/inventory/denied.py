"""Whether an operation failed because this user lacks the rights."""

from __future__ import annotations

import errno
import os

REMEDY = "run it as root"


def is_denied(fault: object) -> bool:
    """Whether `fault`, an error or its text, is caused by missing rights of this user, not root."""
    return os.geteuid() != 0 and any(os.strerror(number) in str(fault) for number in (errno.EACCES, errno.EPERM))
