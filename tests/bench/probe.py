"""Where the time of one call goes: runs a launcher with its functions timed. Started by breakdown.py, as

    python -IS -c STUB LAUNCHER PROBE

Writes lines "PHASE SECONDS" to descriptor 3 when the launcher is done; "first", "ready" and "end" are times of the
monotonic clock. Imports nothing that the launcher would have to import otherwise. The time of a function counts for
its own phase; that of what it calls for theirs.
"""

from __future__ import annotations

import builtins
import marshal
import os
import sys
from _thread import get_ident
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

FD = 3
_PYC_HEAD = 16  # bytes before the code
REST = "rest"
OWN = "probe"  # what the probe itself takes

# The functions of each phase, by module; all that a module or class in the list defines when it is named alone.
PHASES = {
    "parsing": (
        "cni.shared.spec.codec:loads",
        "cni.shared.spec.codec:dumps",
        "cni.shared.spec.request:parse",
        "cni.shared.spec.parsing:parse",
        "cni.shared.spec.result:Result.document",
        "cni.shared.config:fill",
        "cni.link.plugins.macvlan:read",
        "cni.link.plugins.host_device.plugin:read",
        "ipam.call:configured",
    ),
    "record": ("cni.shared.records:Records.*", "cni.shared.records:HeldLock.__exit__"),
    "store": (
        "ipam.acquire:acquire",
        "ipam.upkeep:release",
        "ipam.stores:open_store",
        "ipam.stores.base:Store.__enter__",
        "ipam.stores.base:Store.__exit__",
        "ipam.stores.file:FileStore.*",
        "ipam.stores.ippool:KubernetesStore.*",
        "ipam.stores.ippool.locks:PoolLocks.*",
        "ipam.stores.apiserver.kubeconfig:load",
        "ipam.stores.etcd:EtcdStore.*",
    ),
    "TLS": ("ipam.stores.http:tls_context", "ipam.stores.http:dial", "ipam.stores.http:Connection.__init__"),
    "store's server": ("ipam.stores.http:Connection.request",),
    "netlink": (
        "cni.shared.kernel.netlink:Socket.*",
        "cni.shared.kernel.links:Rtnl.*",
        "cni.shared.kernel.addresses:*",
        "cni.shared.kernel.routes:*",
    ),
    "delegated plugin": ("cni.link.verbs.foreign:_execute",),
    "kernel": (
        "cni.shared.kernel.netns:_setns",
        "cni.shared.kernel.netns:_open",
        "cni.shared.kernel.files:read_sysctl",
        "cni.shared.kernel.files:write_sysctl",
    ),
}


class Clock:
    """Seconds by phase of the thread that made it; `enter` and `leave` nest."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._phases = [REST]
        self._thread = get_ident()
        self._since = perf_counter()

    def enter(self, phase: str) -> None:
        if get_ident() == self._thread:
            self._account()
            self._phases.append(phase)

    def leave(self) -> None:
        if get_ident() == self._thread:
            self._account()
            self._phases.pop()

    def _account(self) -> None:
        now = perf_counter()
        phase = self._phases[-1]
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self._since
        self._since = perf_counter()


def timed(function: Callable[..., Any], phase: str, clock: Clock) -> Callable[..., Any]:
    """`function`, its time counted for `phase`."""

    def call(*positional: Any, **named: Any) -> Any:
        clock.enter(phase)
        try:
            return function(*positional, **named)
        finally:
            clock.leave()

    return call


def instrument(module: Any, clock: Clock) -> None:
    """Time the functions of PHASES that a module, which has just been loaded, defines."""
    for phase, places in PHASES.items():
        for place in places:
            name, _, what = place.partition(":")
            if name != module.__name__:
                continue
            holder, attributes = module, what
            if "." in what:
                kind, _, attributes = what.partition(".")
                holder = getattr(module, kind)
            names = list(vars(holder)) if attributes == "*" else [attributes]
            for attribute in names:
                function = vars(holder).get(attribute)
                if type(function) is type(timed) and function.__module__ == name:
                    setattr(holder, attribute, timed(function, phase, clock))
    if module.__name__ == "cni.shared.kernel.netlink":
        module.socket = Sockets(module.socket, clock)


class Sockets:
    """The module socket with a class `socket` whose system calls count as the kernel's time: it works in send(2)."""

    def __init__(self, module: Any, clock: Clock) -> None:
        class TimedSocket(module.socket):
            __init__ = timed(module.socket.__init__, "kernel", clock)
            send = timed(module.socket.send, "kernel", clock)
            recv = timed(module.socket.recv, "kernel", clock)

        self._module = module
        self.socket = TimedSocket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def imports_timed(importer: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    """`importer`, its time counted for imports; the modules that it loads are instrumented."""
    seen: set[str] = set()

    def call(*positional: Any) -> Any:
        clock.enter(OWN)
        before = set(sys.modules)  # some of them half loaded: the import is one of theirs
        clock.leave()
        clock.enter("TLS" if positional[0] == "ssl" else "imports")
        try:
            found = importer(*positional)
        finally:
            clock.leave()
        clock.enter(OWN)
        for name in sys.modules.keys() - before - seen:
            seen.add(name)
            instrument(sys.modules[name], clock)
        clock.leave()
        return found

    return call


def main(launcher: str, first: float) -> None:
    """Run the launcher; `first` is when this process began to run Python."""
    leave_process = os._exit

    def report(status: int) -> NoReturn:
        clock.enter(REST)  # accounts for the last phase
        found = {"first": first, "ready": ready, "end": perf_counter(), **clock.spent}
        os.write(FD, "".join(f"{phase} {seconds!r}\n" for phase, seconds in found.items()).encode())
        leave_process(status)

    with open(launcher, "rb") as source:
        text = source.read()
    code = marshal.loads(text[_PYC_HEAD:]) if launcher.endswith(".pyc") else compile(text, launcher, "exec")
    os._exit = report
    sys.argv = [launcher]
    clock = Clock()
    ready = perf_counter()
    builtins.__import__ = imports_timed(builtins.__import__, clock)
    exec(code, {"__name__": "__main__", "__file__": launcher})
