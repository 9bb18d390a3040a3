"""The ways in which an attachment ends. Each returns what was wrong with the answers; the host is looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from tests.hosts.host import Host
from tests.node import Reply


def delete(host: Host) -> list[str]:
    """ADD, DEL."""
    return _wrong("ADD", host.call("ADD")) + _wrong("DEL", host.call("DEL"))


def delete_twice(host: Host) -> list[str]:
    """ADD, DEL, DEL."""
    return delete(host) + _wrong("the second DEL", host.call("DEL"))


def no_address(host: Host) -> list[str]:
    """An ADD whose IPAM plugin has no address left; the DEL that runtimes make then."""
    config = host.exhaust()
    return _fails("ADD", host.call("ADD", config)) + _wrong("DEL", host.call("DEL", config))


def no_route(host: Host) -> list[str]:
    """An ADD whose last step fails, a route by a gateway in no subnet; the DEL."""
    config = host.config(routes=[{"dst": "10.20.0.0/16", "gw": "172.31.0.1"}])
    return _fails("ADD", host.call("ADD", config), 101) + _wrong("DEL", host.call("DEL", config))


def namespace_gone(host: Host) -> list[str]:
    """ADD, the sandbox goes, DEL."""
    found = _wrong("ADD", host.call("ADD"))
    host.end_sandbox()
    return found + _wrong("DEL", host.call("DEL"))


def killed_and_retried(host: Host) -> list[str]:
    """An ADD that is killed, ADD, a DEL that is killed, DEL; at points that the name of the cell draws."""
    for verb in ("ADD", "DEL"):
        outcome = host.killed(verb, _drawn(host, verb))
        if outcome.faults:
            return [f"{verb}: {fault}" for fault in outcome.faults]
        found = _wrong(f"{verb} after a kill", host.call(verb))
        if found:
            return found
    return []


def collected(host: Host) -> list[str]:
    """ADD, and a GC that is not told of the attachment, while its sandbox is there."""
    return _wrong("ADD", host.call("ADD")) + _wrong("GC", host.collect())


def gone_and_collected(host: Host) -> list[str]:
    """ADD, the sandbox goes, GC."""
    found = _wrong("ADD", host.call("ADD"))
    host.end_sandbox()
    return found + _wrong("GC", host.collect())


ENDINGS: dict[str, Callable[[Host], list[str]]] = {
    "del": delete, "del-twice": delete_twice, "ipam-fails": no_address, "configure-fails": no_route,
    "namespace-gone": namespace_gone, "killed": killed_and_retried, "gc": collected, "gone-and-gc": gone_and_collected,
}  # fmt: skip


def refused(host: Host, words: tuple[str, ...]) -> list[str]:
    """An ADD that is to be refused with `words`, and the DEL that runtimes make then."""
    reply = host.call("ADD")
    if reply.status == 0:
        found = [f"ADD succeeded, and was to be refused with the words {', '.join(words)}"]
    elif reply.code == 999 or not all(word in reply.msg[:250] for word in words):
        found = [f"ADD was refused with code {reply.code}, not with the words {', '.join(words)}: {reply.msg}"]
    else:
        found = []
    return found + _wrong("DEL", host.call("DEL"))


def _wrong(what: str, reply: Reply) -> list[str]:
    return [f"{what} failed with code {reply.code}: {reply.msg}"] if reply.status else []


def _fails(what: str, reply: Reply, code: int = 0) -> list[str]:
    if reply.status == 0:
        return [f"{what} succeeded, and was to fail"]
    if reply.code == 999 or (code and reply.code != code):
        return [f"{what} failed with code {reply.code}, not {code or 'one that says why'}: {reply.msg}"]
    return []


def _drawn(host: Host, verb: str) -> str:
    """A point of a call at which something changes, drawn by the name of the cell."""
    every = host.points(verb)
    name = f"{host.scene.name} {host.plugin} {verb}"
    return every[int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") % len(every)]
