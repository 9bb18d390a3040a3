"""What trouble with the workers costs a call, beside a cold call: medians in ms, in turns. Nothing is decided by them.

    python -m tests.faults.delays [ROUNDS]      10

A call waits at most 50 ms for workers that cannot serve it; for those that are stopped, or wait for a server, a second, once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import warm
from tests.blackbox import test_warm as scene
from tests.node import BIN, Node, Pod, unusable

BOUND_MS, STOPPED_MS = 50.0, 1050.0


@contextlib.contextmanager
def nothing(node: Node) -> Iterator[None]:
    """No worker runs, and none is made."""
    yield


@contextlib.contextmanager
def listens(answers: Callable[[socket.socket], None], path: str) -> Iterator[None]:
    server = scene._listen(path, answers)
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def floods(path: str) -> Iterator[None]:
    """Connections that say nothing fill the queue of a server that accepts none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, contextlib.ExitStack() as stack:
        listening.bind(path)
        listening.listen(1)
        for _ in range(8):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(path)
        yield
    Path(path).unlink()


def took(node: Node, pod: Pod, more: dict[str, str]) -> float:
    """The ms of an ADD."""
    began = time.monotonic()
    node.cni("macvlan", "ADD", scene.network(), netns=pod, container_id="d1", more=more).succeeded()
    lasted = 1e3 * (time.monotonic() - began)
    node.cni("macvlan", "DEL", scene.network(), netns=pod, container_id="d1", more=warm.COLD).succeeded()
    return lasted


def row(what: str, calls: Callable[[], float], node: Node, pod: Pod, rounds: int, bound: float = BOUND_MS) -> None:
    """Measure `calls` and cold calls in turns, and print a line."""
    pairs = [(calls(), took(node, pod, warm.COLD)) for _ in range(rounds)]
    beside, cold = (statistics.median(values) for values in zip(*pairs, strict=True))
    over = "" if beside - cold <= bound else f"   over {bound:g}"
    print(f"{what:45} {beside:8.1f} {cold:8.1f} {beside - cold:8.1f}{over}", flush=True)


def main(rounds: int) -> None:
    print(f"{'':45} {'ms':>8} {'cold':>8} {'more':>8}")
    with Node(BIN, is_warm=True) as node:
        node.master()
        pod = node.pod()
        (path,) = warm.sockets(node)
        row("workers that serve it", lambda: took(node, pod, {}), node, pod, rounds)
        busy(node, pod, rounds)
        stopped(node, pod, rounds)
        warm.allow(node, 0)
        for what, trouble in (
            ("no workers, and none is made", lambda: nothing(node)),
            ("the connection ends at once", lambda: listens(scene._end, path)),
            ("garbage in place of a greeting", lambda: listens(scene._garbage, path)),
            ("the worker dies in the middle of its reply", lambda: listens(scene._hello_and_garbage, path)),
            ("a reply without an end", lambda: listens(scene._endless, path)),
            ("a flood of connections", lambda: floods(path)),
        ):

            def troubled(trouble: Callable[[], contextlib.AbstractContextManager[None]] = trouble) -> float:
                with trouble():
                    return took(node, pod, {})

            row(what, troubled, node, pod, rounds)


def busy(node: Node, pod: Pod, rounds: int) -> None:
    """All workers wait for something."""
    warm.allow(node, 1)
    with scene.in_the_middle(node, node.pod("waits")) as (call, _):
        row("all workers wait for something", lambda: took(node, pod, {}), node, pod, rounds)
        node.path("/run/others/waits").unlink()
        scene.reply_of(call).succeeded()


def stopped(node: Node, pod: Pod, rounds: int) -> None:
    """Workers and supervisor are stopped."""

    def first() -> float:
        warm.allow(node, 2)
        for process in warm.of_node(node):
            os.kill(process, signal.SIGSTOP)
        return took(node, pod, {})

    row("workers that are stopped: the first call", first, node, pod, max(1, rounds // 3), STOPPED_MS)
    row("workers that are stopped: the next calls", lambda: took(node, pod, {}), node, pod, rounds)


if __name__ == "__main__":
    if why := unusable():
        sys.exit(why)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
