"""etcd3, a client of etcd that is not ours, as a program: `etcd3_client.py PORT`, with tests as its callers.

A request is a line of JSON, [METHOD OF Server, ARGUMENT ...]; so is the reply, what the method returns. It is a program since
the stubs of etcd3, older than protobuf 4, load with PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python alone.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import etcd3


class Server:
    def __init__(self, port: int) -> None:
        self._client = etcd3.client(port=port, timeout=10)
        self._locks: dict[str, Any] = {}

    def entries(self, prefix: str) -> list[tuple[str, str, int]]:
        """(key, value, revision of its last change) of each key, in the order of the keys."""
        found = self._client.get_prefix(prefix, sort_order="ascend")
        return [(about.key.decode(), value.decode(), about.mod_revision) for value, about in found]

    def lock(self, key: str) -> bool:
        """Whether `key` was free, and is now locked by this client."""
        lock = self._locks[key] = self._client.lock("")
        lock.key = key  # the key that etcd3 chooses is below /locks/
        return bool(lock.acquire(timeout=0))

    def unlock(self, key: str) -> bool:
        return bool(self._locks[key].release())

    def watch(self, prefix: str) -> None:
        self._mark, (self._events, _) = f"{prefix}mark", self._client.watch_prefix(prefix)

    def seen(self) -> list[tuple[str, str]]:
        """(PutEvent or DeleteEvent, key) of each change below the watched prefix since the last call."""
        self._client.put(self._mark, "")
        events = itertools.takewhile(lambda event: event.key != self._mark.encode(), self._events)
        return [(type(event).__name__, event.key.decode()) for event in events]


if __name__ == "__main__":
    server = Server(int(sys.argv[1]))
    for line in sys.stdin:
        name, *rest = json.loads(line)
        print(json.dumps(getattr(server, name)(*rest)), flush=True)
