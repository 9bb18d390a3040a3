"""The token that is written for the plugins: the agent's own, or one that is requested for a service account of theirs.

A pod's token ends with the pod. So with its own, a node whose agent is being replaced has plugins that are refused; a
requested one is bound to no pod and outlives the agent by half a day at least, and its account needs the plugins' rights
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

LIFE = 24 * 3600  # seconds; the server may grant less


class Accounts(Protocol):
    """Who issues tokens."""

    def token(self, namespace: str, account: str, seconds: int) -> tuple[str, int]: ...


class Tokens:
    """Tokens of `account`, "NAMESPACE/NAME"; "" for the agent's own."""

    def __init__(self, account: str, clock: Callable[[], float] = monotonic) -> None:
        self._namespace, _, self._name = account.partition("/")
        self._clock = clock
        self._token = ""
        self._renewal = 0.0

    def current(self, own: str, accounts: Callable[[], Accounts]) -> str:
        """The token to be written now; a requested one is renewed at half its life. CniError."""
        if not self._name:
            return own
        if not self._token or self._clock() >= self._renewal:
            began = self._clock()
            self._token, seconds = accounts().token(self._namespace, self._name, LIFE)
            self._renewal = began + seconds / 2
        return self._token

    def forget(self) -> None:
        """The server refuses the token: its account or the server's key is another. `current` requests a new one."""
        self._token = ""
