"""The dispatcher of all executables: the only place that writes stdout or chooses an exit code.

VERSION is answered before anything is imported. Whatever goes wrong below becomes the error object of the spec on
stdout and exit code 1; success is exit code 0 with a result (ADD) or with nothing.
"""

from __future__ import annotations

import posix
import sys

from cni import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from cni.spec.errors import CniError
    from cni.spec.request import Request
    from cni.spec.result import Result

_VERSION_REPLY = (
    b'{"cniVersion": "1.1.0", "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}\n'
)


def main(plugin: str) -> NoReturn:
    """Serve one call of the executable `plugin`, and exit."""
    command = posix.environ.get(b"CNI_COMMAND")
    if command == b"VERSION":
        _write(1, _VERSION_REPLY)
        posix._exit(0)
    if not command:
        about = f"CNI plugin {plugin} of railcni {VERSION}; CNI spec 0.1.0 to 1.1.0. A container runtime runs it with CNI_COMMAND set; people use `railcni`.\n"
        _write(2, about.encode())
        posix._exit(0)
    reply, status = _serve(plugin)
    try:
        _write(1, reply)
    except OSError as fault:  # the runtime learns of a failure, and its DEL clears what an ADD did
        sys.stderr.write(f"plugin {plugin} of railcni: the reply cannot be written to stdout: {fault.strerror}\n")
        status = 1
    sys.stderr.flush()
    posix._exit(status)  # nothing is left to do: finalizing the interpreter costs 2 ms


def _serve(plugin: str) -> tuple[bytes, int]:
    from cni.spec import codec, request
    from cni.spec.errors import CniError

    stdin = b""
    try:
        environ = {_text(k): _text(v) for k, v in posix.environ.items()}
        stdin = _read(0, codec.MOST_BYTES + 1)  # one more than is taken: enough to refuse it
        call = request.parse(environ, stdin)
        result = _call(plugin, call)
        return (codec.dumps(result.document(call.cni_version)).encode() + b"\n" if result else b""), 0
    except CniError as fault:
        failure = fault
    except Exception as fault:  # a fault of ours: say where, and let nothing else out
        failure = _unforeseen(fault)
    return codec.dumps(failure.document(request.version_of(stdin))).encode() + b"\n", 1


def _call(plugin: str, call: Request) -> Result | None:
    from cni.log import Log

    _, name, _ = call.pod
    pod = f" pod {call.pod[0]}/{name}" if name else ""
    attachment = call.attachment
    log = Log(
        f"{plugin} {call.command} {attachment.container_id} {attachment.ifname}{pod} network {attachment.network}"
    )
    if plugin == "whereabouts":
        from ipam import plugin as ipam

        return ipam.call(call, log)
    if plugin == "rdma":
        from cni import rdma

        return rdma.call(call, log)
    from cni import verbs

    return verbs.call(plugin, call, log)


def _unforeseen(fault: Exception) -> CniError:
    from cni.spec.errors import Internal, IoFailure

    if isinstance(fault, OSError):
        what = f"{fault.filename} cannot be used" if fault.filename else "a request to the kernel failed"
        return IoFailure(
            f"{what}: {fault.strerror or fault}; retry, and see the kernel's log if it stays so", _trace(fault)
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


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _read(fd: int, most: int) -> bytes:
    """What comes from `fd` up to its end, or the first `most` bytes of it."""
    parts = []
    while most and (part := posix.read(fd, min(most, 1 << 16))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[posix.write(fd, data) :]
