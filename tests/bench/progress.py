"""How far the run is, on stderr: a line for each part. Nothing is written while calls are measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator


class Progress:
    """`for number in progress.track(what, total)`."""

    def track(self, what: str, total: int) -> Iterator[int]:
        """0 to `total` - 1."""
        began = time.monotonic()
        yield from range(total)
        print(f"{what}: {total} rounds, {time.monotonic() - began:.0f} s", file=sys.stderr)
