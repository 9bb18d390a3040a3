"""The parameters of a link are saved and restored as the files below /proc/sys have them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cni.shared.kernel import link_sysctls
from tests.view import View


def files_of(link: str) -> dict[str, Path]:
    """The files of the thread's namespace that can be written, by family and name."""
    folders = {family: Path("/proc/sys/net", family, "conf", link) for family in ("ipv4", "ipv6", "mpls")}
    found = {
        f"{family}/{path.name}": path
        for family, folder in folders.items()
        if folder.is_dir()
        for path in folder.iterdir()
    }
    return {name: path for name, path in found.items() if os.stat(path).st_mode & 0o200}


def test_every_parameter_that_can_be_written_is_saved_and_comes_back(namespaces: Callable[[], View]) -> None:
    view = namespaces()
    view.add_veth("net1.100", "peer")  # a name with a dot is no further level
    with view.entered():
        paths = files_of("net1.100")
        saved = link_sysctls.read("net1.100")
        assert paths.keys() - saved.keys() <= {"ipv6/stable_secret"}
        assert saved == {name: paths[name].read_text().strip() for name in saved}
        assert list(link_sysctls.due("net1.100", saved)) == []
        changed = {"ipv4/arp_notify": "1", "ipv4/medium_id": "7", "ipv6/hop_limit": "40", "ipv6/addr_gen_mode": "1"}
        for name, value in changed.items():
            paths[name].write_text(value)
        for _, write, path, value in link_sysctls.due("net1.100", saved):
            assert path.replace("net/", "", 1).replace("/conf/net1.100", "") in changed
            write(path, value)
        assert link_sysctls.read("net1.100") == saved


def test_a_secret_comes_back_before_the_mode_that_the_kernel_sets_with_it(namespaces: Callable[[], View]) -> None:
    view = namespaces()
    view.add_veth("ens9", "peer")
    view.add_veth("ens8", "peer8")
    with view.entered():
        paths = files_of("ens9")
        paths["ipv6/stable_secret"].write_text("2001:db8::1234")
        paths["ipv6/addr_gen_mode"].write_text("0")
        saved = link_sysctls.read("ens9")
        assert (next(iter(saved)), saved["ipv6/addr_gen_mode"]) == ("ipv6/stable_secret", "0")
        for _, write, path, value in link_sysctls.due("ens8", saved):
            write(path, value)
        assert link_sysctls.read("ens8") == saved


def test_a_link_that_is_not_there_is_an_error(namespaces: Callable[[], View]) -> None:
    with namespaces().entered(), pytest.raises(FileNotFoundError):
        link_sysctls.read("ens9")
