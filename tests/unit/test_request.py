"""The protocol's checks, in the order of their codes."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.shared.spec import request
from cni.shared.spec.errors import CniError

WHOLE = {
    "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/pod1",
    "CNI_PATH": "/opt/cni/bin",
}  # fmt: skip
CONFIG = b'{"cniVersion": "1.1.0", "name": "rdma", "type": "macvlan"}'


def refusal(environ: dict[str, str], stdin: bytes = CONFIG) -> CniError:
    with pytest.raises(CniError) as caught:
        request.parse(environ, stdin)
    return caught.value


def test_a_whole_request_is_read_and_no_version_is_the_oldest() -> None:
    read = request.parse({**WHOLE, "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:01"}, CONFIG)
    whole = ("ADD", "/run/netns/pod1", ["/opt/cni/bin"], "1.1.0")
    assert (read.command, read.netns, read.path, read.cni_version) == whole
    assert (str(read.attachment), read.args["K8S_POD_NAME"]) == ("rdma/c1/net1", "p")
    assert request.parse(WHOLE, b'{"name": "rdma"}').cni_version == "0.1.0"


@pytest.mark.parametrize(("verb", "needed"), [
    ("DEL", {"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"}),
    ("CHECK", {"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH", "CNI_NETNS"}),
    ("GC", {"CNI_PATH"}), ("STATUS", {"CNI_PATH"}),
])  # fmt: skip
def test_each_verb_needs_its_own_variables(verb: str, needed: set[str]) -> None:
    fault = refusal({"CNI_COMMAND": verb})
    assert (fault.code, {name for name in WHOLE if name in fault.msg}) == (4, needed)


def test_a_malformed_identity_is_told_before_missing_variables_and_these_before_stdin() -> None:
    assert "CNI_CONTAINERID" in refusal({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "-x"}, b"{").msg
    assert "needs" in refusal({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "x"}, b"{").msg
    assert refusal(WHOLE, b"{").code == 6


@pytest.mark.parametrize(("document", "code"), [
    ({}, 7), ({"name": ""}, 7),
    *(({"name": name}, 7) for name in ("-n", "a/b", "..", "a:b", "a b", "ä")),
    ({"name": 5}, 6), ({"name": "rdma", "cniVersion": 1}, 6), ([], 6), ("rdma", 6), (None, 6),
], ids=json.dumps)  # fmt: skip
def test_a_configuration_without_a_good_name_or_version_is_refused(document: Any, code: int) -> None:
    assert refusal(WHOLE, json.dumps(document).encode()).code == code


@pytest.mark.parametrize(
    ("verb", "since"), [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0"), ("ADD", "0.1.0"), ("DEL", "0.1.0")]
)
def test_a_verb_is_refused_below_the_version_that_brought_it(verb: str, since: str) -> None:
    for version in ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"):
        stdin = json.dumps({"name": "rdma", "cniVersion": version}).encode()
        if version >= since:
            assert request.parse({**WHOLE, "CNI_COMMAND": verb}, stdin).cni_version == version
        else:
            fault = refusal({**WHOLE, "CNI_COMMAND": verb}, stdin)
            assert fault.code == 1
            assert since in fault.msg


@pytest.mark.parametrize("version", ["0.0.1", "0.5.0", "1.2.0", "2.0.0", "v1.0.0", "1.0", " 1.0.0"])
def test_an_unknown_version_is_refused_with_those_that_are_known(version: str) -> None:
    stdin = json.dumps({"name": "rdma", "cniVersion": version}).encode()
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        fault = refusal({**WHOLE, "CNI_COMMAND": verb}, stdin)
        assert fault.code == 1
        assert all(known in fault.msg[:250] for known in (version, "0.1.0", "0.3.1", "1.1.0"))


@pytest.mark.parametrize("bad", ["-c1", "_c1", ".", "c/1", "c:1", "c 1", "c1\n", "ä", "../../etc", "c1;rm"])
def test_a_malformed_container_id_is_refused_before_stdin(bad: str) -> None:
    for verb in ("ADD", "CHECK", "DEL"):
        fault = refusal({**WHOLE, "CNI_COMMAND": verb, "CNI_CONTAINERID": bad}, b"no JSON")
        assert fault.code == 4
        assert "CNI_CONTAINERID" in fault.msg and "malformed" in fault.msg


@pytest.mark.parametrize("name", [".", "..", "a/b", "a:b", "a b", "a\tb", "net1\n", "a" * 16, "é" * 8])
def test_an_ifname_that_the_kernel_would_refuse_is_refused(name: str) -> None:
    for verb in ("ADD", "CHECK", "DEL"):
        assert refusal({**WHOLE, "CNI_COMMAND": verb, "CNI_IFNAME": name}).code == 4


@pytest.mark.parametrize("name", ["net%d", "%", "all", "default"])
def test_an_ifname_that_runtimes_take_is_refused_to_an_add_alone(name: str) -> None:
    assert refusal({**WHOLE, "CNI_COMMAND": "ADD", "CNI_IFNAME": name}).code == 4
    assert request.parse({**WHOLE, "CNI_COMMAND": "DEL", "CNI_IFNAME": name}, CONFIG).attachment.ifname == name


@given(st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=15))
def test_names_of_the_specs_characters_pass_when_they_begin_with_a_letter_or_digit(name: str) -> None:
    good = name[0].isalnum()
    assert request.is_identifier(name) == good
    if good:
        environ = {**WHOLE, "CNI_COMMAND": "DEL", "CNI_CONTAINERID": name, "CNI_IFNAME": name}
        assert request.parse(environ, CONFIG).attachment.ifname == name


def test_cni_args_without_an_equals_sign_are_refused_and_empty_parts_are_not() -> None:
    assert refusal({**WHOLE, "CNI_ARGS": "IgnoreUnknown"}).code == 4
    assert request.parse({**WHOLE, "CNI_ARGS": ";A=1;;B=x=y;"}, CONFIG).args == {"A": "1", "B": "x=y"}


def test_keys_match_exactly_before_they_match_without_case() -> None:
    for document, found in (({"MTU": 1, "mtu": 2}, 2), ({"MTU": 1}, 1), ({}, None)):
        whole = request.parse(WHOLE, json.dumps({"name": "rdma", "cniVersion": "1.1.0", **document}).encode())
        assert request.member(document, "mtu") == whole.member("mtu") == found
