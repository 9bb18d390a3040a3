"""The common part of railcni's programs that run until a signal ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

from cni import VERSION
from cni.node.service.endpoint import TEXT, HttpEndpoint, Page
from cni.node.service.log import AgentLog

Run = Callable[[asyncio.Event], Awaitable[None]]


async def serve(name: str, listen: tuple[str, int], pages: dict[str, Page], run: Run, log: AgentLog) -> int:
    """Run the program `name`: await `run(event)`, and serve `pages` and /healthz over HTTP at the address `listen`.
    SIGTERM and SIGINT set the event. Returns the exit code."""
    ended = asyncio.Event()
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, ended.set)
    with closing(HttpEndpoint(listen, {"/healthz": lambda: (200, TEXT, "ok"), **pages})) as http:
        log.say("info", f"railcni {name} serves", version=VERSION, url=f"{http.url}/readyz")
        await run(ended)
    log.say("info", "ended by a signal")
    return 0


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, but at most `seconds`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
