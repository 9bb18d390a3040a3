"""railcni ipam and railcni attachments: what the store and the records hold, as tables and JSON; nothing is changed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.node.runtime.cache import Cache
from cni.shared.spec.errors import IoFailure
from tests.each import quick
from tests.node import COMMAND, ROOT, STATE, Node, Pod
from tests.users import AnotherUser

pytestmark = pytest.mark.forked

STORED = {"type": "whereabouts", "datastore": "file"}
RANGES = [{"range": "192.168.111.0/24"}, {"range": "fd00:111::/64"}]
CONFIG: dict[str, Any] = {"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "master": "ens2f0"}
CONFIG |= {"ipam": {**STORED, "ipRanges": RANGES}}


class Site:
    """A node with three pods: two on the network `rail`, one on `other`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.master()
        self.pods = [self.attach(name, network) for name, network in (("a", "rail"), ("b", "rail"), ("c", "other"))]

    def attach(self, name: str, network: str) -> Pod:
        pod = self.node.pod(name)
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=team;K8S_POD_NAME={name};K8S_POD_UID=uid-{name}"
        config: dict[str, Any] = {**CONFIG, "name": network}
        if network == "other":
            config["ipam"] = {**STORED, "range": "10.0.0.0/16", "network_name": "blue"}
        reply = self.node.cni("macvlan", "ADD", config, container_id=f"sandbox-{name}", netns=pod, args=args)
        assert reply.status == 0, reply.document
        return pod

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        done = self.node.railcni(*argv)
        text = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in text.stderr, text.stderr
        return text

    def rows(self, *argv: str) -> list[list[str]]:
        """The words of each line of a table, without its head."""
        done = self.run(*argv)
        none = f"no lease with {' '.join(argv[2:])} in {STATE}\n"
        assert (done.returncode, done.stderr) == (0, "" if done.stdout else none)
        return [line.split() for line in done.stdout.splitlines()[1:]]

    def read(self, *argv: str) -> Any:
        done = self.run(*argv, "-o", "json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


@pytest.fixture
def site(node: Node) -> Site:
    return Site(node)


def test_pools_are_listed_with_how_full_they_are_and_where(site: Site) -> None:
    strip = "▂" + 31 * "·"
    rows = site.rows("ipam", "pools")
    assert rows[0] == ["192.168.111.0-24", "IPv4", "254", "2", "252", "<1%", strip]
    assert rows[1] == ["blue-10.0.0.0-16", "IPv4", "65534", "1", "65533", "<1%", "▁" + 31 * "·"]
    assert rows[2] == ["fd00-111---64", "IPv6", "~2^64", "2", "~2^64", "<1%", strip, "of", "the", "first", "256"]
    first = site.read("ipam", "pools")[0]
    figures = {"pool": "192.168.111.0-24", "family": 4, "size": 254, "used": 2, "free": 252, "percent": 0.8}
    assert first.items() >= figures.items()
    assert first["occupancy"]["addresses"] == 254
    assert yaml.safe_load(site.run("ipam", "pools", "-o", "yaml").stdout) == site.read("ipam", "pools")


def test_a_pool_counts_the_part_of_its_range_that_is_given_and_attach_shows_the_links_mtu(site: Site) -> None:
    ipam = {"type": "whereabouts", "datastore": "file", "range": "10.9.0.1-10.9.0.2/24"}
    config = {"cniVersion": "1.0.0", "name": "two", "type": "macvlan", "master": "ens2f0", "mtu": 1400, "ipam": ipam}
    site.node.path("/run/two.conf").write_text(json.dumps(config))
    done = site.run("attach", "/run/two.conf", site.node.pod("d").path, "--no-headers")
    assert done.returncode == 0 and done.stdout.split()[0] == "eth0" and "1400" in done.stdout.split(), done
    (pool,) = [pool for pool in site.read("ipam", "pools") if pool["pool"] == "10.9.0.0-24"]
    assert (pool["size"], pool["used"], pool["free"], pool["percent"]) == (2, 1, 1, 50.0)


def test_leases_are_listed_by_pool_and_address_and_can_be_chosen(site: Site) -> None:
    addresses = ["192.168.111.1", "192.168.111.2", "10.0.0.1", "fd00:111::1", "fd00:111::2"]
    assert [r[0] for r in site.rows("ipam", "leases")] == addresses
    for pool in ("fd00-111---64", "fd00:111::/64", "fd00:0111::7/64"):
        assert [r[0] for r in site.rows("ipam", "leases", "--pool", pool)] == addresses[3:]
    assert [r[0] for r in site.rows("ipam", "leases", "--network", "other")] == ["10.0.0.1"]
    assert [r[0] for r in site.rows("ipam", "leases", "--pod", "b")] == ["192.168.111.2", "fd00:111::2"]
    assert [r[0] for r in site.rows("ipam", "leases", "--pod", "team/b", "--pool", "192.168.111.0-24")] == [
        addresses[1]
    ]
    assert site.rows("ipam", "leases", "--pod", "elsewhere/b") == []
    assert site.rows("ipam", "leases", "--pool", "192.168.111.0-24")[0][1:6] == ["192.168.111.0-24", "team/a", "rail", "net1", "sandbox-a"]  # fmt: skip


def test_an_address_is_shown_with_its_holder_and_a_free_one_is_exit_code_1(site: Site) -> None:
    (shown,) = site.read("ipam", "show", "192.168.111.2")
    assert shown.pop("created").endswith("Z")
    del shown["node"]
    lease = {"address": "192.168.111.2", "pool": "192.168.111.0-24", "network": "rail", "ifname": "net1"}
    holder = {"containerID": "sandbox-b", "pod": "team/b", "podUID": "uid-b", "netns": site.pods[1].path}
    assert shown == lease | holder
    assert "pod:         team/b\n" in site.run("ipam", "show", "192.168.111.2/24").stdout
    free = site.run("ipam", "show", "192.168.111.9")
    assert (free.returncode, free.stdout) == (1, f"192.168.111.9 is not leased in {STATE}\n")


def test_attachments_are_listed_with_what_their_plugins_recorded(site: Site) -> None:
    site.node.delete_pod(site.pods[0])
    assert site.rows("attachments") == [
        ["other", "net1", "team/c", "10.0.0.1", site.pods[2].path, "sandbox-c"],
        ["rail", "net1", "team/a", "192.168.111.1,", "fd00:111::1", site.pods[0].path, "(gone)", "sandbox-a"],
        ["rail", "net1", "team/b", "192.168.111.2,", "fd00:111::2", site.pods[1].path, "sandbox-b"],
    ]
    (other,) = site.read("attachments", "--network", "other")
    assert (other["network"], other["containerID"], other["ifname"]) == ("other", "sandbox-c", "net1")
    assert (other["addresses"], other["alive"], set(other["records"])) == (["10.0.0.1"], True, {"ipam", "link"})


def test_attachments_are_chosen_by_their_pod_or_container(site: Site) -> None:
    def chosen(*argv: str) -> list[str]:
        return [a["containerID"] for a in site.read("attachments", *argv)]

    assert chosen("--pod", "team/b") == chosen("--container", "team/b") == chosen("--container", "sandbox-b")
    assert chosen("--pod", "b") == ["sandbox-b"]
    assert chosen("--container", "elsewhere/b") == []
    assert yaml.safe_load(site.run("attachments", "-o", "yaml").stdout) == site.read("attachments")


def conflist(site: Site, version: str) -> tuple[str, str]:
    """The options by which the network `rail` is found."""
    plugins = [{k: v for k, v in CONFIG.items() if k != "name"}]
    site.node.write("/run/net.d/rail.conflist", {"cniVersion": version, "name": "rail", "plugins": plugins})
    return ("--conf-dir", "/run/net.d")


def test_a_pod_stands_for_its_attachment(site: Site) -> None:
    where = ("rail", "--container-id", "team/a", *conflist(site, "1.0.0"))
    done = site.read("detach", *where)
    assert (done["containerID"], done["ifname"], done["netns"]) == ("sandbox-a", "net1", site.pods[0].path)
    assert [r[0] for r in site.rows("ipam", "leases", "--network", "rail")] == ["192.168.111.2", "fd00:111::2"]
    again = site.run("detach", *where)
    assert again.returncode == 1
    assert "no single attachment of pod team/a to rail: this node knows none" in again.stderr
    nameless = site.run("detach", "rail", "--conf-dir", "/run/net.d")
    assert nameless.returncode == 2
    assert "NETNS is needed, or --pod [NAMESPACE/]POD" in nameless.stderr


def test_gc_keeps_what_only_the_records_know(site: Site) -> None:
    site.node.delete_pod(site.pods[0])
    kept = site.read("gc", "rail", *conflist(site, "1.1.0"))["kept"]
    assert [k["containerID"] for k in kept] == ["sandbox-b"]
    assert [r[0] for r in site.rows("ipam", "leases")] == ["192.168.111.2", "10.0.0.1", "fd00:111::2"]
    assert site.pods[1].view.names() == ["net1"]


def test_reading_makes_no_file_and_an_empty_node_has_nothing(node: Node) -> None:
    for argv, what, more in (
        (["ipam", "pools"], "pool", ", which is not there: --kubeconfig FILE names a cluster"),
        (["ipam", "leases"], "lease", ", which is not there: --kubeconfig FILE names a cluster"),
        (["attachments"], "attachment", ""),
    ):
        done = node.railcni(*argv, "-o", "json")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"[]\n", b"")
        done = node.railcni(*argv)  # the message names the folder, since it may be the wrong one
        assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", f"no {what} in {STATE}{more}\n")
    done = node.railcni("ipam", "audit")
    assert (done.returncode, b"nothing is wrong" in done.stdout, done.stderr) == (0, True, b"")
    assert not node.path("/var/lib/cni").exists()


def test_a_damaged_store_is_told_about_and_left_where_it_is(site: Site) -> None:
    file = site.node.path(STATE) / "leases.db"
    file.write_bytes(b"not a database" * 1000)
    done = site.run("ipam", "leases")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"railcni: lease file {STATE}/leases.db is damaged" in done.stderr
    assert file.read_bytes().startswith(b"not a database")


RENDER = ("rails", "render", str(ROOT / "conf/rails/rails.yaml"), "-o")
WRITTEN = [(*RENDER, "table"), (*RENDER, "json"), ("--help",), ("--version",), ("ipam", "leases", "--help")]


@pytest.mark.parametrize("words", quick([*WRITTEN, ("completion", "bash")], (*RENDER, "json"), ("completion", "bash")))
def test_output_that_its_disk_has_no_room_for_is_one_line_on_stderr(words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, env={}, text=True)
    assert (done.returncode, done.stderr) == (1, "railcni: the output cannot be written: No space left on device\n")


def test_a_closed_stdout_is_told_before_a_file_is_opened_in_its_place(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", '"$@" >&-', "sh", *COMMAND, "ipam", "leases", "--data-dir", str(tmp_path)]
    done = subprocess.run(argv, stderr=subprocess.PIPE, env={}, text=True)
    assert (done.returncode, done.stderr) == (1, "railcni: stdout is closed: send it to a file, or to /dev/null\n")


@pytest.mark.parametrize(
    ("closed", "words", "told"),
    [
        pytest.param("2>&-", ("ipam", "leases", "--data-dir"), "", marks=pytest.mark.long),
        ("2>&-", ("nad", "render", "/nonexistent"), ""),
        ("<&-", ("nad", "render", "-"), "<stdin>: error: there is none of MacvlanNetwork, "),
        pytest.param("<&- 2>&-", ("nad", "render", "-"), "", marks=pytest.mark.long),
    ],
)
def test_a_closed_stdin_is_empty_and_a_closed_stderr_is_not_replaced_by_stdout(
    tmp_path: Path, closed: str, words: tuple[str, ...], told: str
) -> None:
    words = (*words, str(tmp_path)) if words[-1] == "--data-dir" else words
    argv = ["/bin/sh", "-c", f'"$@" {closed}', "sh", *COMMAND, *words]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env={}, text=True)
    assert (done.returncode, done.stdout) == (int(words[0] == "nad"), "")
    assert done.stderr.startswith(told) and (told or not done.stderr)


def test_results_that_this_user_may_not_read_say_who_may(tmp_path: Path, another_user: AnotherUser) -> None:
    (tmp_path / "results").mkdir(mode=0)
    with another_user, pytest.raises(IoFailure, match="cannot be listed: Permission denied; run as root"):
        Cache(str(tmp_path)).all()
