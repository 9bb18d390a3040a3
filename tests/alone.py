"""`make unit` with `-p tests.alone`: a test that imports more than the standard library, pytest and hypothesis fails."""

import re
import sys
from collections.abc import Iterator
from importlib import metadata

import pytest

PRESENT = ("pytest", "hypothesis")


def needed(name: str) -> Iterator[str]:
    """The distribution `name` and what it requires, however deep, without extras."""
    yield name
    for line in metadata.requires(name) or ():
        other = re.split(r"[^\w.-]", line)[0]
        if "extra ==" not in line and any(metadata.distributions(name=other)):
            yield from needed(other)


class Refusal:
    """Finds no module of a distribution that a contributor need not have."""

    def __init__(self) -> None:
        known = {name.lower() for present in PRESENT for name in needed(present)}
        found = metadata.packages_distributions().items()
        self._refused = {module for module, owners in found if not known & {owner.lower() for owner in owners}}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._refused:
            raise ModuleNotFoundError(f"tests/unit does without {name}: such a test belongs elsewhere", name=name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    sys.meta_path.insert(0, Refusal())  # type: ignore[arg-type]
