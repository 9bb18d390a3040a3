"""What was found well before, by any process of a run: in which state, and in which respect."""

from hashlib import blake2b
from pathlib import Path


class KnownGood:
    """Keys of what nothing was wrong with: an empty file each in `folder`, for all processes. What went wrong is not kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, *key: object) -> bool:
        return self._path(key).exists()

    def add(self, *key: object) -> None:
        self._path(key).touch()

    def _path(self, key: tuple[object, ...]) -> Path:
        return self._folder / blake2b(repr(key).encode(), digest_size=16).hexdigest()
