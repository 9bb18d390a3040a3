"""Child processes whose exit status is wanted."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has only `signal`, which costs an exec 3 ms


def keep_status() -> None:
    """Let waitpid(2) answer with the exit status of the children that this process starts from now on.

    A caller that ignores SIGCHLD hands that down through exec. The kernel then drops each child's status, and waitpid
    fails with ECHILD once the last child has ended (wait(2), notes). In another thread than the main one Python changes
    no signals: nothing happens there, since such a thread belongs to a program that has set its own.
    """
    try:
        if _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN:
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    except ValueError:
        pass
