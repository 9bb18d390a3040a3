"""The dispatcher of all executables: the only place that makes a reply or chooses an exit code.

`cni.link.main` answers VERSION without this module. After a failure, stdout has the error object of the spec, and the
exit code is 1. After a success the exit code is 0, and stdout has a result only after ADD.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cni import VERSION, load
from cni.link import plugins
from cni.shared import log
from cni.shared.records import Records
from cni.shared.spec.codec import MOST_BYTES, dumps
from cni.shared.spec.errors import CniError, Internal, IoFailure
from cni.shared.spec.request import Request, parse, version_of
from cni.shared.spec.result import Result

if TYPE_CHECKING:
    from cni.link.plugins.base import LinkPlugin
    from cni.link.verbs import attach, check, detach, gc

    Verb = Callable[[LinkPlugin, Request, Records], Result | None]
    _: tuple[Verb, ...] = (attach.add, detach.delete, check.check, gc.gc, check.status)

_WITH_OWN_VERBS = {"whereabouts": "cni.link.plugins.whereabouts", "rdma": "cni.link.plugins.rdma"}
_VERBS = {
    "ADD": ("cni.link.verbs.attach", "add"),
    "DEL": ("cni.link.verbs.detach", "delete"),
    "CHECK": ("cni.link.verbs.check", "check"),
    "GC": ("cni.link.verbs.gc", "gc"),
    "STATUS": ("cni.link.verbs.check", "status"),
}
_SECONDS = 1.0  # approximate time that a call spends on remaining attachments


def main(plugin: str) -> int:
    """Serve a call of the executable `plugin` other than VERSION, and return the exit status."""
    reply, status = serve(plugin, os.environb)
    try:
        while reply:
            reply = reply[os.write(1, reply) :]
    except OSError as fault:  # the exit code reports the failure, and the runtime's DEL then clears the ADD
        log.tell(f"plugin {plugin} of railcni: the reply cannot be written to stdout: {fault.strerror}\n".encode())
        status = 1
    return status


def serve(plugin: str, environ: Mapping[bytes, bytes], stdin: bytes | None = None) -> tuple[bytes, int]:
    """Serve a call. Returns the bytes for stdout and the exit status. If `stdin` is None, standard input is read."""
    try:
        if stdin is None:
            stdin = _stdin(MOST_BYTES + 1)  # one byte above the limit is enough to refuse it
        variables = {
            name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
            for name, value in environ.items()
        }
        call = parse(variables, stdin)
        result = _call(plugin, call)
        return (dumps(result.document(call.cni_version)).encode() + b"\n" if result else b""), 0
    except CniError as fault:
        failure = fault
    except Exception as fault:  # a fault of railcni: the details name lines of code, and no part of the input
        failure = _unforeseen(fault)
    return dumps(failure.document(version_of(stdin or b""))).encode() + b"\n", 1


def _call(plugin: str, call: Request) -> Result | None:
    namespace, name, _ = call.pod
    pod = f" pod {namespace}/{name}" if name else ""
    attachment = call.attachment
    tagged = log.Log(
        f"{plugin} {call.command} {attachment.container_id} {attachment.ifname}{pod} network {attachment.network}"
    )
    if call.member("rail") is not None:
        from cni.shared.allocated import complete  # most networks are not rails

        complete(call, tagged)
    if plugin in _WITH_OWN_VERBS:
        result: Result | None = load(_WITH_OWN_VERBS[plugin], "call")(call, tagged)
        return result
    link_plugin = plugins.named(plugin)
    link_plugin.direct_log(call, tagged)
    records = Records(log=tagged)
    if call.command in ("ADD", "DEL", "GC"):
        _finish_others(call, records)
    verb: Verb = load(*_VERBS[call.command])
    return verb(link_plugin, call, records)


def _finish_others(call: Request, records: Records) -> None:
    """If the next attempt is due, try to remove the attachments whose DEL failed or never came."""
    if not records.is_look_due():
        return
    from cni.link.verbs import gc  # most calls do not look for such attachments

    try:
        gc.finish_unended(records, call.environ, _SECONDS)
    except (CniError, OSError) as fault:  # if the fault also affects this call, its verb raises an error
        records.log.warning(f"attachments that no DEL has ended stay for now: {fault}")


def _unforeseen(fault: Exception) -> CniError:
    if isinstance(fault, OSError):
        failed = f"{fault.filename} cannot be used" if fault.filename else "a request to the kernel failed"
        return IoFailure(
            f"{failed}: {fault.strerror or fault}; retry, and see the kernel's log if it stays so", _trace(fault)
        )
    if isinstance(fault, MemoryError):
        return IoFailure("out of memory: give the plugin more, or a smaller configuration")
    return Internal(f"fault in railcni {VERSION}: {type(fault).__name__}: {fault}; please report it", _trace(fault))


def _trace(fault: BaseException) -> str:
    frames = []
    trace = fault.__traceback__
    while trace:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return "at " + " < ".join(reversed(frames))


def _stdin(most: int) -> bytes:
    """Read stdin to its end, but at most `most` bytes. Raises IoFailure when stdin cannot be read."""
    parts = []
    try:
        while most and (part := os.read(0, min(most, 1 << 16))):
            parts.append(part)
            most -= len(part)
    except OSError as fault:
        raise IoFailure(
            f"stdin cannot be read ({fault.strerror}), such as one that is closed or a directory: give the network configuration"
            " in a file or by a pipe"
        ) from None
    return b"".join(parts)
