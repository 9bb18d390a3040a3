"""JSON in and out, and where an input is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.shared.spec import codec

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_what_is_written_reads_back_as_it_was(value: object) -> None:
    assert codec.loads(codec.dumps(value).encode()) == value
    assert json.loads(codec.dumps(value)) == value


@given(values)
def test_whatever_the_standard_library_writes_is_read_alike(value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return  # a lone surrogate is no UTF-8
    assert codec.loads(b" \n" + text + b"\t ") == value


@pytest.mark.parametrize(("text", "place"), [
    (b"", "line 1, column 1"), (b'{"a": 1', "line 1, column 8"), (b'{\n  "a": 1\n  "b": 2\n}', "line 3, column 3"),
    (b'{"a": 1} {', "line 1, column 10"), (b'{"a": tru}', "line 1, column 7"), (b"{'a': 1}", "line 1, column 2"),
])  # fmt: skip
def test_a_fault_is_told_by_line_and_column(text: bytes, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        codec.loads(text)


@pytest.mark.parametrize(
    "text", [b'{"a": NaN}', b'{"a": Infinity}', b"\xff\xfe", b"[" * 200_000, b"1" * 5000], ids=lambda t: repr(t[:12])
)
def test_what_is_not_json_or_not_bearable_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        codec.loads(text)


@pytest.mark.parametrize("depth", [99, 100, 101])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a": ', b"}")])
@pytest.mark.parametrize("innermost", [b"", b"1"])
def test_a_hundred_levels_are_read_and_no_more(depth: int, opening: bytes, closing: bytes, innermost: bytes) -> None:
    text = opening * (depth - 1) + b"[" + innermost + b"]" + closing * (depth - 1)
    if depth <= 100:
        assert codec.loads(codec.dumps(codec.loads(text)).encode()) == json.loads(text)
    else:
        with pytest.raises(codec.TooMuch, match="100 levels"):
            codec.loads(text)


def test_brackets_in_a_string_are_no_levels() -> None:
    assert codec.loads(b'"' + b"[" * 1000 + b'"') == "[" * 1000
