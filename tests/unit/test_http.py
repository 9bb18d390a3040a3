"""Connections of ipam/stores/http.py to real sockets on loopback."""

import socket
import time

import pytest

from cni import VERSION
from ipam.stores import http
from tests.etcd import free_ports


def test_places_that_refuse_are_given_up_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(http.Refused) as refused:
        http.dial([("127.0.0.1", port) for port in free_ports(2)], 20)
    assert time.monotonic() - began < 10  # it would wait for the whole time
    assert refused.value.reasons == ["Connection refused", "Connection refused"]


def test_a_request_says_who_asks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, connected = http.dial([server.getsockname()], 20)
        connection = http.Connection(connected, "localhost", None, 0)
        with server.accept()[0] as peer:
            with pytest.raises(http.ConnectionLost):  # nobody answers
                connection.request("GET", "/", "", b"", time.monotonic() + 0.1)
            assert f"\r\nUser-Agent: railcni/{VERSION}\r\n".encode() in peer.recv(1000)
