"""Run an IPAM plugin of another suite, as SPEC.md, section 4, demands: with the same parameters and stdin as this
plugin, and its stderr. Only environment variables that plugins need are passed on (cni.shared.kernel.children)."""

from __future__ import annotations

from cni.shared.kernel import children
from cni.shared.log import Log
from cni.shared.spec import codec, parsing
from cni.shared.spec.errors import CniError, DelegateFailed, IncompatibleVersion, NotAvailable
from cni.shared.spec.request import Request, member
from cni.shared.spec.result import Result


def call(kind: str, path: str, request: Request, log: Log) -> Result | None:
    """Run the plugin `kind` at `path`, and return the result of an ADD, None for every other verb.

    A plugin that does not list the request's version gets no GC and no STATUS, which exist since version 1.1.0. It does
    without GC, since railcni's GC calls DEL for each attachment that it removes. STATUS raises NotAvailable if the
    plugin lists only other versions, since each ADD would fail.
    """
    if request.command in ("GC", "STATUS"):
        spoken = _versions(path, request)
        if request.cni_version not in spoken:
            if spoken and request.command == "STATUS":
                raise NotAvailable(f"no ADD can be served: {_unspoken(kind, spoken, request)}")
            log.debug(f"{request.command} is not forwarded: {_unspoken(kind, spoken, request)}")
            return None
    return _answer(kind, path, request, *_execute(kind, path, request))


def _execute(kind: str, path: str, request: Request) -> tuple[bytes, int]:
    """Run the plugin at `path`. Returns its stdout and exit code, or the negative number of the signal that ended it."""
    environ = {
        k.encode("utf-8", "surrogateescape"): v.encode("utf-8", "surrogateescape") for k, v in request.environ.items()
    }
    try:
        return children.run([path], children.environment(environ), request.stdin)
    except OSError as fault:
        raise DelegateFailed(
            f'the IPAM plugin "{kind}" cannot be run: {path}: {fault.strerror}; install it again'
        ) from None


def _versions(path: str, request: Request) -> list[str]:
    """The versions in the plugin's answer to VERSION (SPEC.md, section 4); [] when there is no valid answer."""
    asked = Request({**request.environ, "CNI_COMMAND": "VERSION"}, b'{"cniVersion":"1.0.0"}', {}, {})
    try:
        reply = codec.loads(_execute("", path, asked)[0])
    except (CniError, ValueError):
        return []
    found = member(reply, "supportedVersions")
    return [version for version in found if isinstance(version, str)] if isinstance(found, list) else []


def _unspoken(kind: str, versions: list[str], request: Request) -> str:
    """The error message, with remedy, for an IPAM plugin that supports `versions`, but not the network's cniVersion."""
    spoken = (
        f", but {', '.join(versions)[:80]}: set the network's cniVersion to one of these"
        if versions
        else ": use an older one"
    )
    return f'the IPAM plugin "{kind[:60]}" does not speak cniVersion {request.cni_version}{spoken}, or install a newer {kind[:60]}'


def _answer(kind: str, path: str, request: Request, stdout: bytes, status: int) -> Result | None:
    if status == 0 and request.command != "ADD":
        return None
    try:
        document = codec.loads(stdout)
    except ValueError as fault:
        end = f"exit code {status}" if status >= 0 else f"signal {-status}"
        msg = f'the IPAM plugin "{kind}" ended with {end} and no JSON on stdout ({fault}): run {path} by hand, or see its log'
        raise DelegateFailed(msg, stdout[:500].decode("utf-8", "replace")) from None
    code, text = member(document, "code"), member(document, "msg")
    if status == 0 and code is None:
        return parsing.parse(document, f'the answer of the IPAM plugin "{kind}"', has_interfaces=False)
    if type(code) is not int or code < 1 or not isinstance(text, str) or not text:  # JSON's true is an int of Python
        msg = f'the IPAM plugin "{kind}" failed without an error code and message: run {path} by hand, or see its log'
        raise DelegateFailed(msg, stdout[:500].decode("utf-8", "replace"))
    if code == IncompatibleVersion.code:
        raise DelegateFailed(_unspoken(kind, _versions(path, request), request), f"{kind}: {text}", code)
    raise DelegateFailed(f"{kind}: {text}", str(member(document, "details") or ""), code)
