"""The current step of a long command, on stderr while it runs; only on a terminal."""

from __future__ import annotations

import sys

from cni.cli.terminal import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """`with Progress() as progress: progress.say("reading pods")`."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.status import Status

            self._status = Status("", console=output.console(sys.stderr))
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()
            self._status = None

    def say(self, text: str) -> None:
        """Show `text` in place of the text before."""
        if self._status:
            self._status.update(text)
