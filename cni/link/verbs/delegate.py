"""Call the IPAM plugin, in this process if it is railcni's own, otherwise by exec. The outcome is the same.

The plugin is the file of that name in CNI_PATH. If its device and inode are those of railcni's file, the call is made
in this process, which saves the start of an interpreter. Any other file is run as the spec demands (foreign.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import cni
from cni.link.plugins import EXECUTABLES, whereabouts
from cni.shared import config
from cni.shared.config import Fault
from cni.shared.records import Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, DelegateFailed, InvalidConfig
from cni.shared.spec.request import Request
from cni.shared.spec.result import Result

_OURS = ("bin/whereabouts", "plain/whereabouts")  # the second after `railcni install --replace`

FORGETFUL = frozenset(("static", "dhcp"))  # IPAM plugins whose addresses do not outlive a boot


def add(request: Request, records: Records) -> Result:
    """Call the IPAM plugin's ADD, and return its result. After a CniError, `delete` must free claimed addresses."""
    kind = request.ipam_type
    addresses = _call(kind, request, records)
    assert addresses is not None  # noqa: S101  # ADD always has a result
    if not addresses.ips:
        raise DelegateFailed(
            f'the IPAM plugin "{kind}" answered ADD without an address: see its configuration, key `ipam`'
        )
    return addresses


def delete(request: Request, records: Records) -> None:
    """Call the IPAM plugin's DEL, which releases the addresses. Can be repeated. Raises the plugin's CniError."""
    kind = request.ipam_type
    if _is_name(kind):  # no ADD has called a plugin with an invalid ipam.type
        environ = {**request.environ, "CNI_COMMAND": "DEL"}
        _call(kind, Request(environ, request.stdin, request.config, request.args), records)


def forward(request: Request, records: Records) -> None:
    """Forward CHECK, GC or STATUS to the IPAM plugin, if the network has one."""
    if request.ipam_type:
        _call(request.ipam_type, request, records)


def is_foreign(request: Request) -> bool:
    """Whether the IPAM plugin is of another suite; False if the network has no IPAM plugin, or the plugin is missing.
    Only our plugin answers a repeated ADD with the same addresses; host-local, for example, refuses the ADD."""
    kind = request.ipam_type
    try:
        return kind != "" and not _is_ours(_find(kind, request.path))
    except (CniError, OSError):  # the call of the plugin will fail with the same error
        return False


def refuse(faults: Sequence[Fault], request: Request) -> None:
    """If there are `faults`, raise InvalidConfig with them. If the IPAM plugin is ours, add the faults of `ipam`."""
    if not faults:  # the IPAM plugin reads its block when it is called
        return
    every: list[Fault | CniError] = [*faults]
    kind = request.ipam_type
    try:
        if kind and _is_ours(_find(kind, request.path)):
            every += whereabouts.faults(request)
    except CniError as fault:
        every.append(fault)
    config.refuse(every)


def with_config(request: Request, stdin: bytes) -> Request:
    """A copy of `request` with the configuration `stdin`."""
    return Request(request.environ, stdin, codec.loads(stdin), request.args)


def _call(kind: str, request: Request, records: Records) -> Result | None:
    path = _find(kind, request.path)
    if _is_ours(path):
        try:
            return whereabouts.serve(request, records)
        except CniError as fault:
            fault.msg = f"{kind}: {fault.msg}"  # the same text as after an exec
            raise
    from cni.link.verbs import foreign  # usually the IPAM plugin is ours

    return foreign.call(kind, path, request, records.log)


def _is_name(kind: str) -> bool:
    own = kind.removeprefix("railcni-")
    would_wait = own in EXECUTABLES and own != "whereabouts"  # a link plugin would wait for the lock of this call
    return not ("/" in kind or "\0" in kind or kind in (".", "..") or would_wait)


def _find(kind: str, directories: list[str]) -> str:
    if not _is_name(kind):
        raise InvalidConfig(f'ipam.type "{kind[:60]}" must be the name of an IPAM plugin in CNI_PATH, without "/"')
    for directory in directories:
        path = f"{directory}/{kind}"
        if os.path.isfile(path):
            return path
    searched = ":".join(directories)[:120]
    msg = f'ipam.type "{kind[:60]}" is in none of the directories of CNI_PATH ({searched}): install that plugin there'
    raise DelegateFailed(msg, code=InvalidConfig.code)


def _is_ours(path: str) -> bool:
    found = os.stat(path)
    home = cni.__path__[0].rpartition("/")[0]
    for name in _OURS:
        try:
            own = os.stat(f"{home}/{name}")
        except OSError:
            continue
        if (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino):
            return True
    return False
