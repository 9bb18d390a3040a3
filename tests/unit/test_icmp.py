"""Echo requests: their checksum; that they cross a link is tested by the demo."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.node.runtime import icmp


@given(st.binary(max_size=64))
def test_data_with_its_checksum_sums_to_zero(data: bytes) -> None:
    even = data + b"\0" * (len(data) % 2)
    assert icmp.checksum(even + icmp.checksum(data).to_bytes(2, "big")) == 0


@pytest.mark.parametrize(
    ("data", "wanted"),
    [(bytes.fromhex("0001f203f4f5f6f7"), 0x220D), (b"", 0xFFFF), (b"\xff", 0x00FF)],  # the first is RFC 1071's example
)
def test_the_checksum_is_that_of_rfc_1071(data: bytes, wanted: int) -> None:
    assert icmp.checksum(data) == wanted
