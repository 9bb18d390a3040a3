"""Where sriov's log lines go, and which: its keys logLevel and logFile. What is wrong with them is told elsewhere."""

from __future__ import annotations

from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.log import Log
    from cni.spec.request import Request


def direct(request: Request, log: Log) -> None:
    """Let `log` write as the network asks for, as far as that is right and the node's policy allows it."""
    from cni import log as levels

    level = member(request.config, "logLevel")
    level = "verbose" if level == "info" else level
    if level in levels.LEVELS:
        log.level = level
    path = member(request.config, "logFile")
    if path and isinstance(path, str):
        from cni import policy

        try:
            log.path = policy.current().confine("logRoots", path)
        except ValueError:
            pass  # an ADD says so; a DEL goes on
