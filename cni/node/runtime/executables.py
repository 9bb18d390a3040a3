"""Find and run the executables of plugins, as libcni does (pkg/invoke in containernetworking/cni)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cni.node.runtime.cache import Parameters
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, DecodingFailure, DelegateFailed, IoFailure

_BUSY_TRIES = 5  # a plugin that is being replaced (ETXTBSY) is tried again, once a second
_NOBODY = Parameters("", "", "")


class PluginFailed(CniError):
    """A plugin answered with the error `msg`, `details`, `code`. `plugin` is the `type`, `verb` the CNI_COMMAND."""

    def __init__(self, plugin: str, verb: str, msg: str, details: str = "", code: int = 0) -> None:
        super().__init__(msg, details)
        self.plugin = plugin
        self.verb = verb
        self.code = code


class StepsFailed(CniError):
    """Several steps of one operation failed. `faults` are their errors; the code is that of the first error."""

    def __init__(self, faults: Sequence[CniError]) -> None:
        super().__init__(f"{len(faults)} steps failed", code=faults[0].code)
        self.faults = list(faults)


class Executables:
    """The plugins in the directories `path`, which run with the variables `environ` (default: os.environ) and CNI_*."""

    def __init__(self, path: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self.path = list(path)
        self._environ = os.environ if environ is None else environ

    def find(self, plugin: str) -> str:
        """The path of the first file named `plugin` in the directories. Raises IoFailure when there is none."""
        for directory in self.path:
            file = os.path.join(directory, plugin)
            if os.path.isfile(file):
                return file
        folders = ", ".join(self.path) or "an empty CNI_PATH"
        raise IoFailure(f"there is no plugin {plugin} in {folders}: correct `type`, or install the plugin there")

    def run(self, verb: str, plugin: str, config: dict[str, Any], parameters: Parameters = _NOBODY) -> Any:
        """Run the plugin; return its answer, None for empty output. If it succeeds, its stderr is copied to sys.stderr.

        Raises PluginFailed if the plugin answers with an error, DelegateFailed if it fails without an error message,
        DecodingFailure if the answer is not JSON, and IoFailure if the plugin cannot be run."""
        environ = {
            **self._environ,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": parameters.container_id,
            "CNI_NETNS": parameters.netns,
            "CNI_IFNAME": parameters.ifname,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in parameters.args),
            "CNI_PATH": ":".join(self.path),
        }
        stdin = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
        process = _execute(self.find(plugin), environ, stdin)
        said = process.stderr.decode("utf-8", "replace")
        try:
            answer = codec.loads(process.stdout) if process.stdout.strip() else None
        except ValueError:
            shown = process.stdout[:200].decode("utf-8", "replace")
            raise DecodingFailure(f"{plugin} {verb} answered something that is not JSON: {shown!r}", said) from None
        if process.returncode == 0:
            sys.stderr.write(said)
            return answer
        if isinstance(answer, dict) and "msg" in answer:
            code = answer.get("code")
            details = str(answer.get("details") or "")
            raise PluginFailed(plugin, verb, str(answer["msg"]), details, code if isinstance(code, int) else 0)
        end = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise DelegateFailed(f"{plugin} {verb} ended with {end} and without an error message", said)


def _execute(file: str, environ: Mapping[str, str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    left = _BUSY_TRIES
    while True:
        try:
            return subprocess.run([file], input=stdin, env=environ, capture_output=True, check=False)
        except OSError as fault:
            left -= 1
            if fault.errno != errno.ETXTBSY or not left:
                raise IoFailure(f"{file} cannot be run: {fault.strerror}{_interpreter(file)}") from None
            time.sleep(1)


def _interpreter(file: str) -> str:
    """A text that names the interpreter of the script `file`, or "" if `file` is no script. execve(2) fails with ENOENT
    also if the interpreter is missing."""
    try:
        with open(file, "rb") as script:
            first = script.readline(256)
    except OSError:
        return ""
    known = first.startswith(b"#!") and os.access(file, os.X_OK)
    return f" (its interpreter: {first[2:].strip().decode('utf-8', 'replace')})" if known else ""
