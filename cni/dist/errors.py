"""Why a bundle or an image cannot be built."""

from __future__ import annotations


class CannotBuild(Exception):
    """The message says what is missing, and what to do about it."""
