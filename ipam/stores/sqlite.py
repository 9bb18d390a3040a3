"""The C half of sqlite3, imported without functools.

_sqlite3 takes lru_cache from functools as it starts, for its cache of prepared statements. functools would bring
collections, operator, reprlib and types with it: 2.3 ms of an exec. What it needs is in C too, so it gets that.
"""

from __future__ import annotations

import sys
from _functools import _lru_cache_wrapper  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Functools:
    @staticmethod
    def lru_cache(most: int) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: _lru_cache_wrapper(function, most, False, tuple)


_absent = "functools" not in sys.modules
if _absent:
    sys.modules["functools"] = _Functools  # type: ignore[assignment]
import _sqlite3  # noqa: E402

if _absent:
    del sys.modules["functools"]  # who asks for it later gets the real one

__all__ = ["_sqlite3"]
