"""railcni ipam audit and reclaim on one machine's file store: leases beside records and namespaces."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni.cli.ipam import reclaim as ipam_reclaim
from cni.cluster.audit import snapshot
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam.leases import Owner, Want
from ipam.stores.file import FileStore
from tests.blackbox.command import run
from tests.each import quick
from tests.fabric import Fabric
from tests.node import COMMAND, ROOT, STATE, Node, Pod, until

pytestmark = pytest.mark.forked

IPAM = {"type": "whereabouts", "datastore": "file", "ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]}
CONFIG = {"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "master": "ens2f0", "ipam": IPAM}
REPORT = "/run/report.json"
_HOLD = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
*attachment, part = sys.argv[1:]
held = Records().locked(Attachment(*attachment), part)
print("held", flush=True)
time.sleep(60)
"""


class Site:
    """A node with two pods that have an IPv4 and an IPv6 address each, or with none."""

    def __init__(self, node: Node, *names: str) -> None:
        self.node = node
        if names:
            node.master()
        self.pods = [self.attach(name) for name in names]

    def attach(self, name: str) -> Pod:
        pod = self.node.pod(name)
        self.node.cni("macvlan", "ADD", CONFIG, container_id=f"sandbox-{name}", netns=pod, args=f"K8S_POD_NAMESPACE=team;K8S_POD_NAME={name}").succeeded()  # fmt: skip
        return pod

    def run(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        done = self.node.railcni("ipam", *argv)
        assert b"Traceback" not in done.stderr, done.stderr
        return done

    def audit(self) -> list[tuple[str, str, str]]:
        done = self.run("audit", "-o", "json", "--report", REPORT)
        findings = json.loads(done.stdout)["findings"]
        assert done.returncode == bool(findings)
        return [(f["kind"], f["action"], f.get("address", "")) for f in findings]

    def reclaim(self, *argv: str) -> list[tuple[str, str]]:
        done = self.run("reclaim", "--from-report", REPORT, "--grace", "0", "-o", "json", *argv)
        assert done.returncode == 0, done.stderr
        return [(result["result"], result["address"]) for result in json.loads(done.stdout)]

    def sql(self, statement: str) -> None:
        """Run it in the node: SQLite takes the symbolic link to the node's root for the machine's."""
        program = f"import sqlite3; d = sqlite3.connect({STATE + '/leases.db'!r}); d.execute({statement!r}); d.commit()"
        self.node.run([sys.executable, "-c", program]).check_returncode()


@contextmanager
def at_work(node: Node, *what: str) -> Iterator[None]:
    """The lock of an attachment and its part is held, as while an ADD or DEL of it runs."""
    holder = node.start([sys.executable, "-c", _HOLD, *what])
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    yield
    holder.kill()
    holder.communicate()


@pytest.fixture
def site(node: Node) -> Site:
    return Site(node, "a", "b")


def test_the_leases_of_gone_namespaces_are_found_and_freed_with_their_records(site: Site) -> None:
    assert site.audit() == []
    site.node.delete_pod(site.pods[0])
    dead = [("lease-without-namespace", "reclaim", "10.0.0.1"), ("lease-without-namespace", "reclaim", "fd00::1")]
    assert until(lambda: site.audit() == dead)  # the kernel clears the links out of the namespace a moment later
    assert site.reclaim("--dry-run") == [("would free", "10.0.0.1"), ("would free", "fd00::1")]
    assert site.node.leases() == ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]
    assert site.reclaim() == [("freed", "10.0.0.1"), ("freed", "fd00::1")]  # with the first
    assert (site.node.leases(), site.audit()) == (["10.0.0.2", "fd00::2"], [])
    site.node.cni("macvlan", "DEL", CONFIG, container_id="sandbox-a", netns=site.pods[0].path).succeeded()
    site.node.cni("macvlan", "DEL", CONFIG, container_id="sandbox-b", netns=site.pods[1]).succeeded()
    assert site.node.leases() == []


def test_a_namespace_that_is_there_again_and_an_attachment_at_work_keep_their_leases(site: Site) -> None:
    for pod in site.pods:
        site.node.delete_pod(pod)
    assert until(lambda: len(site.audit()) == 4)
    site.node.pod("a")
    with at_work(site.node, "rail", "sandbox-b", "net1", "ipam"):
        assert {result for result, _ in site.reclaim()} == {"skipped"}
    assert len(site.node.leases()) == 4


def test_the_lease_of_a_group_is_freed_once_its_namespace_is_gone_and_none_of_its_rails_is_at_work(node: Node) -> None:
    fabric = Fabric(node, 2)
    pod = node.pod("a")
    fabric.attach(pod, [0, 1])
    node.cni("macvlan", "DEL", fabric.network(0), container_id="id-a", ifname="net0", netns=pod).succeeded()
    site = Site(node)
    assert site.audit() == []
    node.delete_pod(pod)
    dead = [("lease-without-namespace", "reclaim", f"192.168.{rail}.1") for rail in (0, 1)]
    assert until(lambda: site.audit() == dead)  # the kernel clears the links out of the namespace a moment later
    with at_work(node, "rail-1", "id-a", "net1", "link"):
        assert {result for result, _ in site.reclaim()} == {"skipped"}
    assert site.reclaim() == [("freed", "192.168.0.1"), ("freed", "192.168.1.1")]  # with the first
    node.ended("macvlan", fabric.network(1), container_id="id-a", ifname="net1", netns=pod.path)


def test_leases_without_a_record_and_records_without_a_lease_are_told(site: Site) -> None:
    for record in site.node.path(f"{STATE}/attachments").glob("rail:sandbox-a:*:ipam"):
        record.unlink()
    site.sql("DELETE FROM lease WHERE container = 'sandbox-b' AND pool = '10.0.0.0-24'")
    assert site.audit() == [
        ("index-differs", "look", ""), ("lease-without-record", "look", "10.0.0.1"),
        ("record-without-lease", "look", "10.0.0.2"), ("lease-without-record", "look", "fd00::1"),
    ]  # fmt: skip
    assert site.reclaim() == []


def test_a_lease_whose_caller_named_no_namespace_is_not_called_dead(site: Site) -> None:
    config = {**CONFIG, "name": "dra"}
    site.node.cni("whereabouts", "ADD", config, container_id="claim", netns="/dev/null").succeeded()
    assert site.audit() == []
    assert "(gone)" not in site.node.railcni("attachments").stdout.decode()
    done = site.node.railcni("ipam", "flush")
    assert (done.returncode, done.stdout) == (0, b"nothing is pending\n")


# What runs `railcni`: the commands that make its place, and the answers for a sandbox that is there and one that is gone.
_PROC = "mount -t proc proc /proc"
_NO_NAMES = "mount -t tmpfs none /run"
_PASSED = "mount --rbind /run/netns /run/netns"  # as a volume of the host's folder
_STALE = "umount -l {there}"  # as where /run/netns was mounted before the sandbox was made: a file without the mount
_SANDBOX = (
    "mkfifo /run/up; unshare --pid --fork --kill-child nsenter --net={there} sh -c 'echo >/run/up; exec sleep 60' >/dev/null &"
    " read up </run/up"
)
_HOST, _POD = "unshare --mount --propagation=private", "unshare --mount --propagation=private --pid --fork --kill-child"
_UNKNOWN = ("unknown", "unknown")
CALLERS = {
    "the host": (_HOST, ":", "used", "ended"),
    "a pod with hostPID": (_HOST, _NO_NAMES, "used", "ended"),
    "a pod with hostPID and an old /run/netns": (_HOST, _STALE, "used", "ended"),
    "a pod with hostPID without privileges": (f"setpriv --bounding-set=-sys_ptrace {_HOST}", _NO_NAMES, *_UNKNOWN),
    "a node that is a container": (_POD, f"{_PROC}; {_SANDBOX}; {_NO_NAMES}", "used", "ended"),
    "a pod": (_POD, f"{_PROC}; {_NO_NAMES}", *_UNKNOWN),
    "a pod with a /run/netns of its own": (_POD, f"{_PROC}; {_NO_NAMES}; mkdir -p /run/netns", *_UNKNOWN),
    "a pod with /run/netns": (_POD.replace("private", "slave"), f"{_PROC}; {_PASSED}", "used", "ended"),
    "a pod with an old /run/netns": (_POD, f"{_PROC}; {_STALE}; {_PASSED}", "unknown", "ended"),
}


@pytest.mark.parametrize(
    "caller", quick(CALLERS, "the host", "a node that is a container", "a pod", "a pod with an old /run/netns")
)
def test_only_a_caller_that_sees_the_nodes_sandboxes_says_that_an_address_is_free(site: Site, caller: str) -> None:
    there, gone = site.pods
    process = site.node.start(["sleep", "60"], pod=there)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    given = [
        {"pool": "10.0.0.0-24", "address": f"10.0.0.{number}", "scope": "", "network": "rail", "ifname": "net1"}
        | {"containerID": f"sandbox-{pod.name}", "pod": ["team", pod.name, ""], "node": "n", "bootID": boot}
        | {"netns": pod.path, "sequence": 1}
        for number, pod in enumerate(site.pods, 1)
    ]
    site.node.delete_pod(gone)
    assert until(lambda: len(site.audit()) == 2)  # the kernel clears the links out of the namespace a moment later
    place, before, *answers = CALLERS[caller]
    script = f'set -e; {before.format(there=there.path)}; exec "$@"'
    words = [*place.split(), "sh", "-c", script, "sh", *COMMAND, "ipam", "in-use"]
    done = site.node.run(words, stdin=json.dumps(given).encode())
    assert (done.returncode, [state for state, _ in json.loads(done.stdout)]) == (0, answers), done
    process.kill()
    process.communicate()


@pytest.mark.parametrize("given", ["{", "3", '{"pool": 1}', '[{"pool": "10.0.0.0-24"}]', "[null]"])
def test_leases_as_another_version_writes_them_are_refused_by_name(node: Node, given: str) -> None:
    done = node.railcni("ipam", "in-use", stdin=given.encode())
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"railcni: stdin: want leases as `kubectl railcni` of this version writes them: ")


def test_a_namespace_that_comes_last_keeps_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (snapshot, ipam_reclaim):
        monkeypatch.setattr(module, "STATE", str(tmp_path))
    owner = Owner(Attachment("rail", "c1", "net1"), ("team", "a", ""), "node-1", "boot-1", "/run/netns/x", 1)
    FileStore(str(tmp_path)).claim([Want("10.0.0.0-24", 4, 0x0A000001, "")], owner)
    record = {"store": {"kind": "file", "path": str(tmp_path)}, "pools": []}
    Records(str(tmp_path)).write(owner.attachment, "ipam", record)
    options, report = ("--data-dir", str(tmp_path)), str(tmp_path / "report")
    answers: list[bool] = []
    monkeypatch.setattr(snapshot, "is_there", lambda *of: answers.pop(0) if answers else False)
    run("audit", "--report", report, *options, code=1)
    argv = ("reclaim", "--from-report", report, "--grace", "0", *options)
    answers[:] = [False, False, True]
    results = [(one["result"], one["why"]) for _ in range(2) for one in run(*argv, data=True)]
    assert (results[0], results[1][0]) == (("skipped", "it is in use"), "freed")
