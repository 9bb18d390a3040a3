"""The error of a build."""

from __future__ import annotations


class CannotBuild(Exception):
    """A bundle or an image cannot be built; the message names the cause and the remedy."""
