"""railcni agent: reports whether the node's installation is whole, for a kubelet's probes.

It does nothing else yet: no plugin asks it, and without it every plugin works the same. /healthz and /readyz answer 200
or 503, with the reasons as lines of text. The answer is found anew at each request; the plugins are executed only when
one of their files has changed since, so that a probe costs some system calls.
"""

from __future__ import annotations

import argparse
import http.server
import signal
import socket
import sys
from typing import Any

from cni.cli.install import add_options, folder_of, state_of
from cni.cli.installation import facts as facts_of
from cni.cli.installation import health
from cni.run import VERSION
from cni.spec.errors import CniError, IoFailure

LISTEN = "127.0.0.1:9108"
PATHS = ("/healthz", "/readyz")
_CLIENT_SECONDS = 2.0  # one client is served at a time: a silent one must not keep the next one waiting


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `agent`."""
    about = "report on HTTP whether the installation is whole; for now nothing else"
    parser = commands.add_parser("agent", help=about, description=about[0].upper() + about[1:] + ".")
    add_options(parser)
    parser.add_argument(
        "--listen", type=_address, default=LISTEN, metavar="ADDRESS:PORT", help=f"default: {LISTEN}, this node alone"
    )
    parser.set_defaults(run=_run)


class Health:
    """The health of the installation that `options` mean."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._whole: tuple[object, ...] = ()  # the fingerprint of plugins that were seen to run

    def faults(self) -> list[str]:
        """What is wrong now; [] when nothing is."""
        try:
            folder, state = folder_of(self._options), state_of(self._options)
            facts = facts_of.read(folder.path)
            fingerprint = health.fingerprint(folder.path, facts)
            if fingerprint == self._whole:
                return list(health.state_faults(state))
            found = health.faults(folder.path, folder.shown, facts, state)
        except CniError as fault:
            return [fault.msg]
        except OSError as fault:
            return [f"{fault.filename}: {fault.strerror}"]
        self._whole = () if found else fingerprint
        return found


class _Handler(http.server.BaseHTTPRequestHandler):
    server_version, sys_version = f"railcni/{VERSION}", ""
    timeout = _CLIENT_SECONDS

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in PATHS:
            self._answer(404, f"want {' or '.join(PATHS)}")
            return
        faults = self.server.health.faults()  # type: ignore[attr-defined]
        self._answer(503 if faults else 200, "\n".join(faults) or "ok")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, text: str) -> None:
        data = f"{text}\n".encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: a probe comes every few seconds."""


class _Server(http.server.HTTPServer):
    def __init__(self, address: tuple[str, int], health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.health = health
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()  # the base class asks the DNS for a name besides

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away: nobody is left to be told."""


def _run(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    host, port = options.listen
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    health = Health(options)
    try:
        server = _Server((host, port), health)
    except OSError as fault:
        raise IoFailure(
            f"cannot listen on {shown}: {fault.strerror}; name an address of this node and a free port with --listen"
        ) from None
    with server:
        faults = health.faults()
        port = server.server_address[1]
        _say(
            f"railcni agent {VERSION}: reports health on http://{host if ':' not in host else f'[{host}]'}:{port}/healthz"
        )
        _say("; ".join(faults) or "the installation is whole")
        server.serve_forever()
    return 0


def _end(number: int, frame: object) -> None:
    sys.exit(0)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}": want ADDRESS:PORT, such as {LISTEN} or [::1]:9108')
    return host, int(port)
