"""The arrays in which rtnetlink shows a link's parameters mean what the files below /proc/sys say."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cni.link.plugins.host_device import hoststate
from cni.shared.kernel import link_sysctls, raw_state
from cni.shared.kernel.links import Rtnl
from tests.view import View


@pytest.mark.parametrize(("family", "names"), [("ipv4", link_sysctls.IPV4), ("ipv6", link_sysctls.IPV6)])
def test_every_parameter_that_can_be_written_is_in_the_array_with_its_value(
    namespaces: Callable[[], View], rtnl: Callable[[View], Rtnl], family: str, names: tuple[str, ...]
) -> None:
    view = namespaces()
    view.add_veth("ens9", "peer")
    socket = rtnl(view)
    with view.entered():
        folder = Path("/proc/sys/net", family, "conf/ens9")
        files = {path.name: path for path in folder.iterdir()}
        for number, name in enumerate(("hop_limit", "router_solicitation_interval", "ra_defrtr_metric", "medium_id")):
            if name in files:
                files[name].write_text(str(40 + number))
        link = socket.link("ens9")
        assert link is not None
        raw = raw_state.Raw(link.body)
        found = link_sysctls.values(names, raw.inet if family == "ipv4" else raw.inet6)
        for name, value in found.items():
            if name in files:  # a kernel may lack one
                assert files[name].read_text().strip() == value, name
        writable = {name for name, path in files.items() if os.stat(path).st_mode & 0o200}
        read_alone = {path.rpartition("/")[2] for path in hoststate.UNLISTED}
        assert writable - set(found) - read_alone <= {"stable_secret"}
