"""Connections of ipam/stores/http.py to real sockets on loopback."""

from __future__ import annotations

import time

import pytest

from ipam.stores import http
from tests.etcd import free_ports


def test_places_that_refuse_are_given_up_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(http.Refused) as refused:
        http.dial([("127.0.0.1", port) for port in free_ports(2)], 20)
    assert time.monotonic() - began < 10  # it would wait for the whole time
    assert refused.value.reasons == ["Connection refused", "Connection refused"]
