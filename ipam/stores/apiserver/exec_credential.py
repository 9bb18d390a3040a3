"""A kubeconfig's `exec` helper: a program that prints an ExecCredential (client.authentication.k8s.io).

It runs without a terminal, with this process's environment and the kubeconfig's additions, and is ended at the deadline.
"""

from __future__ import annotations

import posix
import select
from time import monotonic

from cni.shared.kernel import children
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, TryAgainLater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_MOST_BYTES = 1 << 20
_KILL = 9


class Helper:
    """The helper that a kubeconfig's `exec` describes. Its credential is kept until `forget`."""

    __slots__ = ("_argv", "_environ", "_status", "_version", "where")

    def __init__(self, path: str, directory: str, described: Any) -> None:
        """`path` is the kubeconfig's, `directory` where its relative paths start."""
        self.where = path
        self._status: dict[str, Any] | None = None
        described = described if isinstance(described, dict) else {}
        command, arguments = described.get("command"), described.get("args") or []
        if not isinstance(command, str) or not command or not _are_texts(arguments):
            raise InvalidConfig(f"kubeconfig {path}: exec needs command, a text, and args, a list of texts")
        self._version = described.get("apiVersion")
        if self._version not in _VERSIONS:
            raise InvalidConfig(f"kubeconfig {path}: exec.apiVersion is not known: want {' or '.join(_VERSIONS)}")
        if described.get("interactiveMode") == "Always":
            raise InvalidConfig(f"kubeconfig {path}: exec.interactiveMode is Always, and a plugin has no terminal")
        if "/" in command and not command.startswith("/"):
            command = f"{directory}/{command}"
        self._argv = [command, *arguments]
        self._environ: dict[str, str] = {}
        for entry in described.get("env") or []:
            if not isinstance(entry, dict) or not _are_texts([entry.get("name"), entry.get("value")]):
                raise InvalidConfig(f"kubeconfig {path}: exec.env wants objects with name and value, both texts")
            self._environ[entry["name"]] = entry["value"]

    def token(self, deadline: float) -> str:
        """The bearer token, "" for none."""
        return str(self._credential(deadline).get("token") or "")

    def certificate(self, deadline: float) -> tuple[bytes, bytes]:
        """The client certificate and its key as PEM, empty for none."""
        status = self._credential(deadline)
        return tuple(str(status.get(f"client{k}Data") or "").encode() for k in ("Certificate", "Key"))  # type: ignore[return-value]

    def forget(self) -> None:
        """Run the helper again when its credential is needed next."""
        self._status = None

    def _credential(self, deadline: float) -> dict[str, Any]:
        if self._status is None:
            output = self._run(deadline)
            try:
                document = codec.loads(output)
                status = document["status"]
                if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
                    raise ValueError("status holds neither token nor clientCertificateData")
            except (ValueError, KeyError, TypeError) as fault:
                raise InvalidConfig(f"{self} has not printed an ExecCredential: {fault}") from None
            self._status = status
        return self._status

    def __str__(self) -> str:
        return f"the exec helper of kubeconfig {self.where}"

    def _run(self, deadline: float) -> bytes:
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environ: dict[Any, Any] = {**posix.environ, **{k.encode(): v.encode() for k, v in self._environ.items()}}
        environ[b"KUBERNETES_EXEC_INFO"] = codec.dumps(info).encode()
        environ.setdefault(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        reading, writing = posix.pipe()
        children.keep_status()
        try:
            actions = [
                (posix.POSIX_SPAWN_OPEN, 0, "/dev/null", posix.O_RDONLY, 0),
                (posix.POSIX_SPAWN_DUP2, writing, 1),
            ]
            pid = posix.posix_spawnp(self._argv[0], self._argv, environ, file_actions=actions, setpgroup=0)
        except OSError as fault:
            posix.close(reading)
            raise InvalidConfig(f"{self} cannot be run: {fault.strerror}") from None
        finally:
            posix.close(writing)
        output = None
        try:
            output = _read(reading, deadline)
        except TimeoutError:
            try:
                posix.kill(-pid, _KILL)
            except ProcessLookupError:
                pass  # it has just ended
        finally:
            posix.close(reading)
        status = posix.waitpid(pid, 0)[1]
        if output is None:
            raise TryAgainLater(f"{self} has not ended in time: run it by hand and see what it waits for")
        if status:
            raise InvalidConfig(
                f"{self} failed with status {posix.waitstatus_to_exitcode(status)}: run it by hand; its errors are on stderr"
            )
        return output


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _read(fd: int, deadline: float) -> bytes:
    """All bytes of `fd` up to its end; TimeoutError."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    parts: list[bytes] = []
    left = _MOST_BYTES
    while True:
        wait = deadline - monotonic()
        if wait <= 0 or left < 0 or not poll.poll(wait * 1000):
            raise TimeoutError
        part = posix.read(fd, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
