"""cni/shared/kernel/files.py: kernel parameters of the namespace that the thread is in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cni.shared.kernel import files
from tests.view import View


def test_a_parameter_is_read_and_written_in_the_namespace_of_the_thread(namespaces: Callable[[], View]) -> None:
    pod, other = namespaces(), namespaces()
    for view in (pod, other):
        view.add_veth("net1.100", "wire")  # a name with a dot is no further level
    name = "net/ipv4/conf/net1.100/arp_notify"
    with pod.entered():
        assert files.read_sysctl(name) == "0"
        files.write_sysctl(name, "1")
        assert files.read_sysctl(name) == "1"
    assert (pod.sysctl(name), other.sysctl(name)) == ("1", "0")


def test_a_parameter_that_is_not_there_is_an_error(namespaces: Callable[[], View]) -> None:
    with namespaces().entered():
        for call in (
            lambda: files.read_sysctl("net/ipv4/conf/net9/arp_notify"),
            lambda: files.write_sysctl("net/none", "1"),
        ):
            with pytest.raises(FileNotFoundError):
                call()


def test_a_value_that_the_kernel_does_not_take_is_an_error(namespaces: Callable[[], View]) -> None:
    with namespaces().entered(), pytest.raises(OSError, match="Invalid argument"):
        files.write_sysctl("net/ipv4/conf/lo/arp_notify", "many")
