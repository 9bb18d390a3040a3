"""How far the run is, on stderr: a bar on a terminal, else a line for each part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType

from rich import progress
from rich.console import Console


class Progress:
    """`for number in progress.track(what, total)`. It draws between calls only: a thread that draws would be measured."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description:50}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def track(self, what: str, total: int) -> Iterator[int]:
        """0 to `total` - 1."""
        began = time.monotonic()
        task = self._bar.add_task(what, total=total)
        for number in range(total):
            yield number
            self._bar.update(task, advance=1, refresh=True)
        self._bar.remove_task(task)
        self._console.print(f"{what}: {total} rounds, {time.monotonic() - began:.0f} s", highlight=False)
