"""What holds for every plugin, tested with each of them, without the cost of all pairs of plugins and inputs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from cni.link.plugins import EXECUTABLES

PLUGINS = EXECUTABLES
ATTACHING = tuple(
    name for name in PLUGINS if name != "rdma"
)  # its ADD needs a kernel with RDMA in exclusive mode: tests/lab/test_rdma_chain.py

each_plugin = pytest.mark.parametrize("plugin", PLUGINS)
# What the code that all link plugins call does for each of them alike; all of them when the long tests run.
one_link = pytest.mark.parametrize("plugin", ["macvlan", pytest.param("host-device", marks=pytest.mark.long)])
each_attaching = pytest.mark.parametrize("plugin", ATTACHING)


def quick(cases: Iterable[Any], *few: Any) -> list[Any]:
    """The cases as parameters; all but `few` of them are long."""
    return [pytest.param(case, marks=() if case in few else pytest.mark.long) for case in cases]


def quick_of(table: Mapping[str, Any], *few: str) -> list[Any]:
    """The values of a table as parameters with its names; all but those of `few` names are long."""
    return [pytest.param(table[name], marks=() if name in few else pytest.mark.long, id=name) for name in table]


def pairwise(*tables: Collection[Any]) -> list[Any]:
    """The rows of three `tables` as parameters: as many that any two values of two tables meet; the others are long.

    The numbers of these rows add up to a multiple of the shortest length, for which every two values find a third.
    """
    shortest = min(map(len, tables))
    rows = product(*(enumerate(table) for table in tables))
    return [
        pytest.param(*(value for _, value in row), marks=pytest.mark.long if sum(n for n, _ in row) % shortest else ())
        for row in rows
    ]


def each_and(
    names: str, rows: Sequence[Any], ids: Callable[[Any], str] | Sequence[str] = str, plugins: Sequence[str] = PLUGINS
) -> pytest.MarkDecorator:
    """Each row with one of `plugins` in turn, and each of them with a row; all pairs when the long tests run.

    One dispatcher serves all plugins, so a row seldom tells more of the second than of the first.
    """
    pairs = []
    for number, row in enumerate(rows):
        values = row if isinstance(row, tuple) else (row,)
        name = "-".join(map(ids, values)) if callable(ids) else ids[number]
        for plugin in plugins:
            is_left = number == 0 and plugin in plugins[len(rows) :]
            is_short = is_left or plugin == plugins[number % len(plugins)]
            marks = () if is_short else (pytest.mark.long,)
            pairs.append(pytest.param(plugin, *values, marks=marks, id=f"{plugin}-{name}"))
    return pytest.mark.parametrize(f"plugin, {names}", pairs)
