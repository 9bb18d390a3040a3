"""Warm workers (cni/warm): a call is served as by a Python of its own, whatever becomes of the worker; and nothing stays
when they end."""

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.cli import warm as command
from cni.node.installation import change, content
from cni.node.installation.change import Folder
from cni.warm import protocol
from tests import callers, warm
from tests import node as nodes
from tests.blackbox.test_host_device import PCI, bus
from tests.blackbox.test_protocol import UNREADABLE
from tests.each import quick, quick_of
from tests.faults import backing
from tests.node import CHROOT, INTERPRETER, IS_BUNDLE, ROOT, STATE, Node, Pod, Reply, unusable
from tests.users import AnotherUser

pytestmark = [
    pytest.mark.skipif(bool(CHROOT), reason="workers are tested where Python is: unset RAILCNI_CHROOT"),
    pytest.mark.skipif(not IS_BUNDLE and not shutil.which("cc"), reason="needs a C compiler: apt-get install gcc"),
]
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace: apt-get install strace")

# Another's IPAM plugin. An ADD waits in it as long as /run/others/waits is there, and tells that it does.
WAITING_IPAM = """#!/bin/sh
cat >/dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo $$ >> /run/others/waiters
    while [ -e /run/others/waits ]; do sleep 0.02; done
    echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.7/24"}]}'
fi
exit 0
"""


def until(condition: Callable[[], object]) -> bool:
    """How busy the machine is decides no test."""
    return nodes.until(condition, 100)


def workers(number: int) -> pytest.MarkDecorator:
    """The node begins with so many workers, which never grow more."""
    return pytest.mark.parametrize("node", [number], indirect=True, ids=[f"{number} workers"])


@pytest.fixture
def node(request: pytest.FixtureRequest, executables: Path) -> Iterator[Node]:
    """A node with workers, as many as `workers` says."""
    why = unusable()
    if why:
        pytest.skip(why)
    number = getattr(request, "param", 0)
    with Node(executables, is_warm=True, workers=number) as fresh:
        assert until(lambda: not number or are_ready(fresh, number))
        fresh.caller = callers.CONTAINERD.environ
        fresh.master()
        yield fresh
    assert warm.processes(fresh.mounts) == []


@pytest.fixture
def pod(node: Node) -> Pod:
    return node.pod()


def network(**keys: Any) -> dict[str, Any]:
    ipam = {"type": "whereabouts", "range": "10.9.0.0/24", "datastore": "file"}
    return {"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "ens2f0", "ipam": ipam, **keys}


def have_workers(node: Node, number: int) -> None:
    """Begin again with so many workers, which never grow more."""
    warm.allow(node, number)
    assert until(lambda: are_ready(node, number))


def are_ready(node: Node, number: int) -> bool:
    """Whether so many workers wait for calls; a call starts them where there are none."""
    if not warm.sockets(node):
        node.cni("whereabouts", "STATUS", warm.NOTHING)
    found = warm.found(node)  # once: those of a former policy may end at any moment
    return [one.workers > 0 for one in found] == [True] and len(workers_of(node, found[0].supervisor)) == number


def state_of(node: Node) -> Any:
    (workers,) = warm.found(node)
    return workers


def workers_of(node: Node, supervisor: int = 0) -> list[int]:
    supervisor = supervisor or state_of(node).supervisor
    return [process for process in warm.of_node(node) if process != supervisor]


def cycle(node: Node, pod: Pod, container: str = "c1", **keys: Any) -> None:
    """A whole life of an attachment, of which nothing is left."""
    config = network(**keys)
    result = node.cni("macvlan", "ADD", config, netns=pod, container_id=container).succeeded()
    node.cni("macvlan", "CHECK", config | {"prevResult": result}, netns=pod, container_id=container).succeeded()
    node.cni("macvlan", "DEL", config, netns=pod, container_id=container).succeeded()


def called_through(node: Node, *words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """STATUS of the IPAM plugin, which the program in `words` becomes."""
    env = {"CNI_COMMAND": "STATUS", "CNI_PATH": "/", "PATH": os.environ["PATH"], **more}
    return node.run([*words, node.executables / "whereabouts"], env=env, stdin=json.dumps(warm.NOTHING).encode())


# --- what is served ---
OUTSIDE = """#!/bin/sh
given=$(cat)
{ pwd; umask; env | sort; echo "$given"; ls /proc/$$/fd; while read -r line; do case $line in Sig[BIC]*) echo "$line";; esac; done < /proc/$$/status; } > /run/others/seen
echo "a line on stderr" >&2
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.7/24"}]}'
exit 0
"""


PLAIN_CALLER = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.umask(0o31)
os.execv(sys.argv[1], sys.argv[1:])
"""  # a caller that has signals as they are by default, whatever those of the tests are


def test_another_plugin_that_a_worker_runs_sees_what_it_would_see_of_a_process(node: Node, pod: Pod) -> None:
    """The working directory, the umask, the environment, stdin, stderr, descriptors and signals. But for LC_CTYPE, which
    Python sets where a process has no locale (PEP 538)."""
    node.script("/run/others/outside", OUTSIDE)
    config = network(ipam={"type": "outside", "text": "ä\u2028" * 3})
    seen, answers = {}, {}
    for how, env in (("warm", {}), ("cold", warm.COLD)):
        before = warm.served(node)
        more = {"X": "1", "EMPTY": "", "PATH": "/usr/bin:/bin"} | env
        argv = [INTERPRETER, "-IS", "-c", PLAIN_CALLER, node.executables / "macvlan"]
        environ = more | environment(node, "ADD", pod)
        reply = nodes.Call(node.start(argv, env=environ, cwd="/run/others"), json.dumps(config).encode()).finish()
        answers[how] = reply.addresses, reply.stderr
        lines = node.path("/run/others/seen").read_text().splitlines()
        seen[how] = [line for line in lines if not line.startswith(("RAILCNI_COLD=", "LC_CTYPE="))]
        assert warm.served(node) == before + (how == "warm")
        node.cni("macvlan", "DEL", config, netns=pod, path=paths(node)).succeeded()
    assert (seen["warm"], answers["warm"]) == (seen["cold"], answers["cold"])


def test_a_stdin_that_does_not_block_is_read_to_its_end(node: Node, pod: Pod) -> None:
    script = "import os, sys; os.set_blocking(0, False); os.execv(sys.argv[1], sys.argv[1:])"
    before = warm.served(node)
    argv = [INTERPRETER, "-IS", "-c", script, node.executables / "macvlan"]
    process = node.start(argv, env=environment(node, "ADD", pod))
    assert process.stdin
    for part in json.dumps(network()).partition("type"):
        assert until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "macvlan\n")
        process.stdin.write(part.encode())
        process.stdin.flush()
        time.sleep(0.05)
    out, _ = process.communicate(timeout=30)
    assert json.loads(out)["ips"]
    assert warm.served(node) == before + 1


@workers(1)
def test_a_log_line_says_how_its_call_was_served_and_no_other_call_shows_it(node: Node, pod: Pod) -> None:
    """Even when it could not be written where it belongs."""
    config = network()
    config["ipam"]["log_level"] = "debug"

    def attached() -> None:
        node.cni("macvlan", "ADD", config, netns=pod).succeeded()
        assert until(lambda: are_ready(node, 1))

    attached()
    argv = ["sh", "-c", 'exec 2>/dev/full; exec "$0"', node.executables / "macvlan"]
    assert node.run(argv, env=environment(node, "DEL", pod), stdin=json.dumps(config).encode()).returncode == 0
    for how, more in (("warm", {}), ("cold", warm.COLD)):
        attached()
        before = warm.served(node)
        lines = node.cni("macvlan", "DEL", config, netns=pod, more=more).stderr.splitlines()
        assert [f" DEL c1 net1 network net ({how}): " in line for line in lines] == [True]
        assert warm.served(node) == before + (how == "warm")


def test_what_one_call_has_learnt_no_other_knows(node: Node, pod: Pod) -> None:
    """The node's policy is read by each call."""
    cycle(node, pod)
    policy = node.allow(masters=["ens9*"])
    node.cni("macvlan", "ADD", network(), netns=pod).refused(7, "is not in masters")
    policy.unlink()
    cycle(node, pod)


@pytest.mark.parametrize("config", [network(master="no-such"), {"cniVersion": "1.1.0"}], ids=["in the end", "at once"])
@workers(1)
def test_a_worker_ends_after_an_error_and_another_takes_its_place(node: Node, pod: Pod, config: dict[str, Any]) -> None:
    (worker,) = workers_of(node)
    node.cni("macvlan", "ADD", config, netns=pod).refused(7)
    assert until(lambda: worker not in warm.of_node(node))
    assert until(lambda: are_ready(node, 1))
    cycle(node, pod)
    assert state_of(node).fault == ""


@pytest.mark.long
@workers(2)
def test_a_worker_serves_a_number_of_calls(node: Node) -> None:
    former = set(workers_of(node))
    for _ in range(600):
        node.cni("whereabouts", "STATUS", warm.NOTHING)
    assert until(lambda: not former & set(workers_of(node)))


@workers(2)
def test_a_worker_goes_on_after_each_verb_of_each_plugin(node: Node, pod: Pod) -> None:
    """Nothing of a call stays open in its process: no lock, no socket."""
    device(node)
    before = workers_of(node)
    keys = {"macvlan": {}, "host-device": {"device": "ens9"}, "sriov": {"deviceID": PCI}, "whereabouts": {}}
    for number, plugin in enumerate([*keys, *keys, *keys]):
        config = network(type=plugin, **keys[plugin])
        result = node.cni(plugin, "ADD", config, netns=pod, container_id=f"c{number}").succeeded()
        node.cni(plugin, "CHECK", config | {"prevResult": result}, netns=pod, container_id=f"c{number}").succeeded()
        node.cni(plugin, "DEL", config, netns=pod, container_id=f"c{number}").succeeded()
    assert (workers_of(node), node.leftovers()) == (before, [])


@pytest.mark.parametrize("store", ["etcd", "kubernetes", "addresslease"])
def test_a_worker_keeps_one_connection_to_a_store_that_nodes_share(node: Node, pod: Pod, store: str) -> None:
    if backing.unavailable(store):
        pytest.skip(backing.unavailable(store))
    kept = backing.BACKINGS[store](node, "net")
    try:
        have_workers(node, 1)
        (worker,) = workers_of(node)
        assert until(lambda: warm.waits(worker))  # it has closed the connection of the last question
        before = len(os.listdir(f"/proc/{worker}/fd"))
        ipam = {"type": "whereabouts", "range": "10.9.0.0/24", **kept.config()}
        for number in range(4):
            cycle(node, pod, f"c{number}", ipam=ipam)
            assert workers_of(node) == [worker]
            assert until(lambda: len(os.listdir(f"/proc/{worker}/fd")) == before + 1)
    finally:
        kept.close()


BETWEEN = {  # two calls of one worker, which has the lease file open: what a shell does in its directory
    "the file is removed": "rm leases.db",
    "its journal is removed": "rm leases.db-journal",
    "the directory is removed": "rm -r ../railcni",
    "the directory is moved": "mv ../railcni ../other",
    "the file is emptied": "truncate -s 0 leases.db",
    "the file is overwritten": "yes garbage | dd of=leases.db bs=512 count=8 conv=notrunc status=none",
    "a copy takes its place": "cp leases.db copy; mv copy leases.db",
    "a link takes its place": "mv leases.db former; ln -s former leases.db",
    "others can write the file": "chmod 666 leases.db",
    "others can write the directory": "chmod 777 .",
    "another directory is mounted over it": "mount -t tmpfs -o mode=700 tmpfs .",
    "the node boots": "echo 2nd > /run/boot; mount --bind /run/boot /proc/sys/kernel/random/boot_id",
}


@pytest.mark.parametrize(
    "does", quick_of(BETWEEN, "the file is removed", "others can write the file", "the node boots")
)
def test_what_becomes_of_the_lease_file_between_two_calls_is_met_as_by_cold_calls(executables: Path, does: str) -> None:
    def outcome(is_warm: bool) -> Any:
        with Node(executables, is_warm, workers=1) as node:

            def answer(verb: str, container: str) -> Any:
                reply = node.cni("whereabouts", verb, network(), netns="/run/netns/none", container_id=container)
                return reply.status, reply.document

            answers = [answer("ADD", "c1"), answer("ADD", "c2")]
            node.run(["sh", "-ec", f"cd {STATE}; {does}"]).check_returncode()
            answers += [answer(*call) for call in (("ADD", "c3"), ("DEL", "c1"), ("ADD", "c4"), ("DEL", "c3"))]
            file = node.path(f"{STATE}/leases.db")
            return answers, node.files(), file.read_bytes()[68:72]  # which boot has found it sound

    assert outcome(True) == outcome(False)


def device(node: Node) -> None:
    """A device ens9 of the host, which is the VF at PCI as well."""
    node.host.add_veth("ens9", "ens9-peer")
    node.remember()
    bus(node, "pci", PCI, "ens9", driver="mlx5_core")


def test_a_vf_is_refused_at_once_while_the_add_that_takes_it_is_at_work(node: Node, pod: Pod) -> None:
    """An ADD holds the lock of the VF until its record is written, and no longer."""
    device(node)
    with in_the_middle(node, pod, "sriov", deviceID=PCI) as (call, _):
        second = network(type="sriov", deviceID=PCI)
        node.cni("sriov", "ADD", second, netns=node.pod("pod2"), container_id="c2").refused(11, PCI, "in use by", "c1")
        node.path("/run/others/waits").unlink()
        call.finish().succeeded()
    own = network(type="sriov", deviceID=PCI, ipam={"type": "waiting"})
    node.ended("sriov", own, netns=pod, path=paths(node), settle=2)


def test_a_burst_makes_more_workers(node: Node) -> None:
    pods = [node.pod(f"p{number}") for number in range(6)]
    for _ in range(10):  # on a busy machine the calls of a burst may come one after the other
        calls = [node.start_cni("macvlan", "ADD", network(), netns=p, container_id=p.name) for p in pods]
        addresses = [a for reply in node.cni_at_once(calls) for a in reply.succeeded()["ips"]]
        assert len({a["address"] for a in addresses}) == 6
        grown = state_of(node).workers > 2
        for p in pods:
            node.cni("macvlan", "DEL", network(), netns=p, container_id=p.name).succeeded()
        if grown:
            return
    raise AssertionError(f"ten bursts of six calls, and there are {state_of(node).workers} workers")


@workers(1)
def test_workers_that_wait_for_anothers_plugin_hold_up_no_other_call(node: Node, pod: Pod) -> None:
    with in_the_middle(node, pod) as (call, _):
        cycle(node, node.pod("pod2"), "c2")
        node.path("/run/others/waits").unlink()
        call.finish().succeeded()
    assert warm.cold(node).endswith("sss")
    detached(node, pod)


HELPER = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "echo", "args": ["x"]}
KUBECONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "c", "user": {"exec": HELPER}}],
}  # fmt: skip


def test_a_helper_is_looked_for_in_the_path_that_the_caller_has(node: Node) -> None:
    node.caller = {}
    node.write("/etc/cni/net.d/whereabouts.d/kubeconfig", KUBECONFIG)
    ipam = {"type": "whereabouts", "range": "10.9.0.0/24", "datastore": "kubernetes"}
    config = network(ipam=ipam | {"kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/kubeconfig"}})
    before = state_of(node)
    searched: list[dict[str, str]] = [{}, {"PATH": ""}, {"PATH": "/usr/bin"}, {"PATH": "/run"}]
    for number, more in enumerate(searched, 1):
        how = {"netns": "/run/netns/none"}
        answers = [node.cni("whereabouts", "ADD", config, **how, more=more | way) for way in ({}, warm.COLD)]
        assert "exec helper" in answers[0].msg
        assert answers[0].document == answers[1].document, more
        assert until(lambda: state_of(node).calls == before.calls + number), more  # noqa: B023


@pytest.mark.parametrize("caller", callers.CALLERS.values(), ids=callers.CALLERS)
def test_the_calls_of_each_caller_are_warm_from_the_second_on(node: Node, pod: Pod, caller: callers.Caller) -> None:
    node.caller = caller.environ
    through: list[str] = []
    if caller.is_in_pod:
        node.run(["mkdir", "/run/hostroot"]).check_returncode()
        node.run(["mount", "--rbind", "/", "/run/hostroot"]).check_returncode()
        there = node.start(["unshare", "--mount", "sleep", "1000"])
        assert until(lambda: Path(f"/proc/{there.pid}/comm").read_text() == "sleep\n")
        through = ["nsenter", f"--mount=/proc/{there.pid}/ns/mnt", "/usr/sbin/chroot", "/run/hostroot"]
    before, cold, calls = warm.served(node), len(warm.cold(node)), 0
    for number in range(5):
        how = {"ifname": caller.ifname, "args": caller.args_of("pod1", f"c{number}"), "through": through}
        result: dict[str, Any] = {}
        for step in caller.order:
            config = network(**({"prevResult": result} if step.has_previous else {}))
            netns = pod if step.has_netns else ""
            reply = node.cni("macvlan", step.verb, config, netns=netns, container_id=f"c{number}", **how)
            result = reply.succeeded() or result
            calls += 1
            if calls == 1 and caller.is_in_pod:
                assert until(lambda: len([w for w in warm.found(node) if w.workers]) == 2)
    served = warm.served(node) - before
    assert (served, len(warm.cold(node)) - cold) == (calls - caller.is_in_pod, caller.is_in_pod)
    assert node.leftovers(settle=2) == []
    end_elsewhere(node)


# --- whom a worker does not serve ---


UNREAD = {  # variables of a caller that change no result of a worker which already runs; of containerd LD_LIBRARY_PATH
    "LD_LIBRARY_PATH": "/opt/containerd/lib:", "LD_PRELOAD": "/no/such.so", "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "MALLOC_ARENA_MAX": "1", "TZ": "Asia/Tokyo", "LC_ALL": "de_DE.ISO-8859-1", "PYTHONPATH": "/nowhere",
    "PYTHONHOME": "/nowhere", "HTTPS_PROXY": "http://192.0.2.1:3128", "NOTIFY_SOCKET": "/run/systemd/notify",
}  # fmt: skip
SETTINGS = {  # what the resolver and OpenSSL read from the environment of their process
    "HOSTALIASES": "/nowhere", "LOCALDOMAIN": "example.org", "RES_OPTIONS": "attempts:1", "RESOLV_MULTI": "on",
    "OPENSSL_CONF": "/dev/null", "OPENSSL_MODULES": "/nowhere", "SSL_CERT_DIR": "/nowhere", "SSL_CERT_FILE": "/nowhere",
}  # fmt: skip


def test_a_variable_that_no_result_depends_on_makes_no_call_cold(node: Node) -> None:
    for name, value in UNREAD.items():
        before = state_of(node).calls
        for verb in ("STATUS", "STATUS"):
            node.cni("whereabouts", verb, warm.NOTHING, more={name: value}).succeeded()
        assert state_of(node).calls == before + 2, name


@pytest.mark.parametrize("name", quick(SETTINGS, "RES_OPTIONS"))
def test_callers_with_settings_of_the_resolver_or_openssl_have_workers_with_the_same(node: Node, name: str) -> None:
    """In any order: Go lays out an environment anew for each call."""
    former = state_of(node)

    def called(value: str, step: int) -> None:
        settings = [("LD_PRELOAD", ""), ("SSL_CERT_FILE", "/nowhere"), (name, value)][::step]
        node.cni("whereabouts", "STATUS", warm.NOTHING, more=dict(settings)).succeeded()

    def own() -> Any:
        return [w for w in warm.found(node) if w.supervisor != former.supervisor and w.workers]

    called(SETTINGS[name], 1)
    assert until(lambda: len(own()) == 1)
    called(SETTINGS[name], -1)
    (workers,) = own()
    assert workers.calls == 1
    environ = Path(f"/proc/{workers.supervisor}/environ").read_text().split("\0")
    assert {*environ} - {""} == {"SSL_CERT_FILE=/nowhere", f"{name}={SETTINGS[name]}"}
    called("/another", 1)
    assert until(lambda: len(own()) == 2)
    assert sum(w.calls for w in warm.found(node)) == former.calls + 1


def test_the_libraries_of_a_caller_end_no_cold_call_and_reach_the_plugin_that_it_runs(node: Node, pod: Pod) -> None:
    """A file that is no library is a stand-in for one of another C library than Python's."""
    node.script("/run/others/outside", OUTSIDE)
    for library in ("libexpat.so.1", "libz.so.1"):  # of Python, and not of the shell
        node.path(f"/run/others/{library}").write_text("of another C library")
    library, config = "/run/others/libz.so.1", network(ipam={"type": "outside"})
    for variable, value in (("LD_LIBRARY_PATH", "/run/others"), ("LD_PRELOAD", library), ("LD_AUDIT", library)):
        said = []
        for cold in ({}, warm.COLD):
            how = {"netns": pod, "path": paths(node), "more": {variable: value} | cold}
            said.append(node.cni("macvlan", "ADD", config, **how).stderr)  # of the shell's loader, if anything
            assert f"{variable}={value}" in node.path("/run/others/seen").read_text().splitlines()
            node.cni("macvlan", "DEL", config, **how).succeeded()
        assert said[0] == said[1], variable


def test_a_netns_that_leads_elsewhere_for_the_worker_is_entered_by_the_call_itself(node: Node, pod: Pod) -> None:
    """/proc/self/fd/7 of the caller is not that of the worker."""
    environ = environment(node, "ADD", pod) | {"CNI_NETNS": "/proc/self/fd/7"}
    argv = ["sh", "-c", f'exec 7<{pod.path}; exec "$0"', node.executables / "macvlan"]
    before, cold = state_of(node), warm.cold(node)
    done = node.run(argv, env=environ, stdin=json.dumps(network()).encode())
    assert done.returncode == 0, done.stdout
    assert "net1" in pod.view.names()
    assert (state_of(node).calls, warm.cold(node)) == (before.calls, cold + "p")
    node.ended("macvlan", network(), netns=pod)


UNLIKE = ("unshare --mount", "unshare --net", "unshare --uts --user --map-root-user", "/usr/sbin/chroot /run/root")


def test_a_caller_in_other_namespaces_or_with_another_root_is_served_by_none_of_these_workers(node: Node) -> None:
    node.run(["sh", "-ec", "mkdir /run/root; mount --rbind / /run/root"]).check_returncode()
    before = warm.served(node)
    for words in UNLIKE:
        done = called_through(node, *words.split())
        assert done.returncode == 0 or b"permission" in done.stderr.lower() + done.stdout.lower(), done
    assert warm.served(node) == before
    end_elsewhere(node)


COLD_CALLS = {  # a caller's variables, what it goes through, and the letter that its cold calls have
    "asked": (warm.COLD, [], "c"),
    "limited": ({}, ["prlimit", "--fsize=1000000"], "l"),
    "limited to nothing": ({}, ["prlimit", "--fsize=0"], ""),  # the file of cold calls takes no letter either
    "too long": (dict.fromkeys("ABCD", 100_000 * "x"), [], "x"),
    "of others": ({}, ["setpriv", "--bounding-set=-sys_boot"], "o"),
    "without a kernel that says more": ({}, ["sh", "-c", 'umount -l /proc; exec "$0"'], "k"),
}


@pytest.mark.parametrize("cold_call", quick_of(COLD_CALLS, "asked", "limited to nothing", "of others"))
def test_status_and_doctor_count_cold_calls_by_their_reasons(node: Node, cold_call: Any) -> None:
    more, through, letter = cold_call
    before = warm.cold(node)
    argv = ["unshare", "--mount", *through] if letter == "k" else through
    for _ in range(2):
        done = called_through(node, *argv, **more)
        assert done.returncode == 0, done
    assert warm.cold(node) == before + 2 * letter
    counts = {command.REASONS["n"]: 1} | ({command.REASONS[letter]: 2} if letter else {})
    status = node.railcni("status", "-o", "json")
    assert json.loads(status.stdout)["cold"] == counts
    words = f"2 because {command.REASONS[letter]}" if letter else f"1 because {command.REASONS['n']}"
    for said in (node.railcni("status"), node.railcni("warm", "status")):
        assert words in " ".join(said.stdout.decode().split())


def test_the_file_of_cold_calls_stays_small_and_no_call_needs_it(node: Node, pod: Pod) -> None:
    file = node.path(protocol.COLD)
    file.write_text("n" * (1 << 16))
    node.cni("whereabouts", "STATUS", warm.NOTHING, more=warm.COLD).succeeded()
    assert file.read_text() == "c"
    for lies in ("mkdir cold", "mkfifo cold", "ln -s /run/elsewhere cold"):
        node.run(["sh", "-ec", f"cd {protocol.DIRECTORY}; rm -rf cold; {lies}"]).check_returncode()
        node.cni("whereabouts", "STATUS", warm.NOTHING, more=warm.COLD).succeeded()
    assert not node.path("/run/elsewhere").exists()
    assert node.railcni("warm", "status").returncode == 0
    node.run(["rm", "-r", protocol.PARENT]).check_returncode()
    node.cni("whereabouts", "STATUS", warm.NOTHING, more=warm.COLD).succeeded()
    assert file.read_text() == "c" and file.parent.stat().st_mode & 0o777 == 0o700


SNDBUFFORCE = 32  # SO_SNDBUFFORCE of asm-generic/socket.h
LONG = "x" * (100 << 10)  # as a variable may be at most, about
REQUESTS = {  # of a launcher: {variables} and how many descriptors, and whether a worker serves it
    "an ordinary one": ({}, 3, True),
    "a long one": ({"A": LONG}, 3, True),
    "one that is longer than a worker reads": ({"A": LONG, "B": LONG, "C": LONG}, 3, False),
    "one without stderr": ({}, 2, False),
    "one with another file": ({}, 4, False),
}


def test_a_worker_serves_only_a_request_that_came_whole(node: Node) -> None:
    """A node whose sockets have large buffers (net.core.wmem_default) lets a launcher send more than a worker takes."""
    for name, (more, files, is_served) in REQUESTS.items():
        have_workers(node, 1)
        assert asked(node, more, files) == (b"0" if is_served else b"o" if files != 3 else b""), name


def asked(node: Node, more: dict[str, str], files: int) -> bytes:
    """What a worker says to a request with these variables and so many descriptors."""
    (path,) = warm.sockets(node)
    supervisor = state_of(node).supervisor
    identity = Path(f"/proc/{supervisor}/cmdline").read_bytes().split(b"\0")[3]
    environ = {"CNI_COMMAND": "STATUS", "CNI_PATH": "/"} | more
    entries = [f"{name}={value}".encode() for name, value in environ.items()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(warm.NOTHING).encode())
        stdin.flush()
        connection.setsockopt(socket.SOL_SOCKET, SNDBUFFORCE, 1 << 20)
        connection.settimeout(100)
        connection.connect(path)
        assert connection.recv(16) == b"h"
        there, null = os.open("/", os.O_PATH), os.open("/dev/null", os.O_RDWR)
        given = [stdin.fileno(), there, null, null][:files]
        socket.send_fds(connection, [b"\0".join([identity, b"whereabouts", b"18", b"", *entries])], given)
        for fd in (there, null):
            os.close(fd)
        return connection.recv(1 << 16)


# --- who ends, or stands still ---
def paths(node: Node) -> list[str | Path]:
    return [node.executables, "/run/others"]


def environment(node: Node, verb: str, pod: Pod) -> dict[str, str]:
    env = {"CNI_COMMAND": verb, "CNI_PATH": ":".join(map(str, paths(node))), "CNI_NETNS": pod.path}
    return env | {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1"}


@contextlib.contextmanager
def in_the_middle(node: Node, pod: Pod, plugin: str = "macvlan", **keys: Any) -> Iterator[tuple[Any, int]]:
    """An ADD that has made its link and waits: the call, and the process of the worker that serves it."""
    node.script("/run/others/waiting", WAITING_IPAM)
    node.path("/run/others/waits").touch()
    config = network(type=plugin, ipam={"type": "waiting"}, **keys)
    call = node.start_cni(plugin, "ADD", config, netns=pod, path=paths(node))
    give(call)
    assert until(lambda: node.path("/run/others/waiters").exists() and node.path("/run/others/waiters").read_text())
    script = int(node.path("/run/others/waiters").read_text())
    worker = int(Path(f"/proc/{script}/stat").read_text().rpartition(")")[2].split()[1])
    assert worker in workers_of(node)
    try:
        yield call, worker
    finally:
        node.path("/run/others/waits").unlink(missing_ok=True)


def end_elsewhere(node: Node) -> None:
    """End the workers in other mount namespaces too, in which they would keep the node for as long as they wait for calls."""
    warm.end_in(os.stat(node.host.path).st_ino, "net")


def give(call: Any) -> None:
    """Give a call that was started all of its stdin."""
    call.process.stdin.write(call._stdin)
    call.process.stdin.close()
    call.process.stdin = None


def detached(node: Node, pod: Pod) -> None:
    node.ended("macvlan", network(ipam={"type": "waiting"}), netns=pod, path=paths(node), settle=2)


@pytest.mark.parametrize("who", ["worker", "supervisor"])
def test_a_call_whose_worker_is_killed_is_served_cold(node: Node, pod: Pod, who: str) -> None:
    with in_the_middle(node, pod) as (call, worker):
        supervisor = state_of(node).supervisor
        former = set(workers_of(node))
        os.kill(worker if who == "worker" else supervisor, signal.SIGKILL)
        assert until(lambda: warm.cold(node).endswith("e"))
        node.path("/run/others/waits").unlink()  # not before: the worker would end the call, if it is killed late
        assert call.finish().succeeded()["ips"][0]["address"] == "10.9.0.7/24"
    assert "net1" in pod.view.names()
    if who == "worker":
        assert until(lambda: "signal 9 in macvlan ADD c1" in state_of(node).fault)
    else:
        assert until(lambda: not {supervisor, *former}.intersection(warm.of_node(node)))
    detached(node, pod)
    cycle(node, pod)


def test_a_launcher_that_is_killed_takes_its_workers_call_with_it(node: Node, pod: Pod) -> None:
    with in_the_middle(node, pod) as (call, worker):
        call.process.kill()
        assert until(lambda: worker not in warm.of_node(node))
        node.path("/run/others/waits").unlink()
        call.process.communicate(timeout=30)  # the plugin that the worker ran has our stderr until it ends
    assert until(lambda: len(workers_of(node)) == 2)
    detached(node, pod)
    cycle(node, pod)


def test_workers_that_are_stopped_delay_a_call_by_a_second(node: Node, pod: Pod) -> None:
    for process in warm.of_node(node):
        os.kill(process, signal.SIGSTOP)
    for _ in range(2):
        began = time.monotonic()
        node.cni("whereabouts", "STATUS", warm.NOTHING).succeeded()
        assert time.monotonic() - began > 0.9  # the call has waited; other work on the machine does not matter
        assert warm.cold(node).endswith("s")
    for process in warm.of_node(node):
        os.kill(process, signal.SIGCONT)
    before = warm.served(node)
    cycle(node, pod)
    assert warm.served(node) == before + 3


@workers(2)
def test_a_supervisor_that_was_stopped_makes_up_for_the_workers_that_ended_meanwhile(node: Node, pod: Pod) -> None:
    """Its workers end one by one: each of them after an error."""
    supervisor = state_of(node).supervisor
    os.kill(supervisor, signal.SIGSTOP)
    for number in range(2):
        node.cni("macvlan", "ADD", network(master="no-such"), netns=pod, container_id=f"c{number}").refused(7)
    cycle(node, pod)
    os.kill(supervisor, signal.SIGCONT)
    assert until(lambda: any(w.workers == 2 for w in warm.found(node)))
    before = warm.served(node)
    cycle(node, pod)
    assert (warm.served(node), node.leftovers()) == (before + 3, [])


# --- what is full, or used up ---


FULL = {  # the folder: how it becomes small, and the code of an ADD when it is full
    "/var/lib/cni": ("mkdir -p /var/lib/cni; mount -t tmpfs -o size=64k tmpfs /var/lib/cni", 5),
    "/run": ("mount -o remount,size=2m /run", 0),
}


@pytest.mark.parametrize("folder", FULL)
@pytest.mark.parametrize("workers", quick(["running", "ended"], "running"))
def test_a_full_file_system_gets_the_answer_of_a_cold_call(node: Node, pod: Pod, folder: str, workers: str) -> None:
    if workers == "ended":
        warm.end(node)
    small, code = FULL[folder]
    node.run(["sh", "-ec", small]).check_returncode()
    node.run(["sh", "-c", f"cat /dev/zero > {folder}/filler"])
    for how in ({}, warm.COLD, {}):
        reply = node.cni("macvlan", "ADD", network(), netns=pod, more=how)
        assert reply.code == code, reply
        node.cni("macvlan", "DEL", network(), netns=pod, more=how)
    node.path(f"{folder}/filler").unlink()
    cycle(node, pod)
    assert until(lambda: any(w.workers for w in warm.found(node)))
    assert node.leftovers(settle=2) == []


@pytest.mark.parametrize("error", quick(["ENOMEM", "EAGAIN"], "EAGAIN"))
@needs_strace
@workers(2)
def test_a_supervisor_that_can_make_no_worker_tries_again(node: Node, pod: Pod, error: str) -> None:
    supervisor = state_of(node).supervisor
    fork = [f"inject={name}:error={error}" for name in ("clone", "fork", "vfork", "clone3")]
    with traced(node, "-e", fork[0], "-e", fork[-1], process=supervisor):
        for process in workers_of(node):
            os.kill(process, signal.SIGKILL)
        for number in range(2):
            cycle(node, pod, f"c{number}")
        assert workers_of(node) == []
    assert until(lambda: len(workers_of(node)) == 2)
    assert "no worker can be made" in state_of(node).fault
    before = warm.served(node)
    cycle(node, pod)
    assert warm.served(node) == before + 3


CALLERS = {  # what a shell does before it becomes the executable
    "stderr full": "exec 2>/dev/full",
    "stdin closed": "exec 0<&-",
    "stdin a directory": "exec 0< /",
    "stdout closed": "exec 1>&-",
    "stderr closed": "exec 2>&-",
    "stdin and stderr closed": "exec 0<&- 2>&-",
    "all closed": "exec 0<&- 1>&- 2>&-",
    "four descriptors": "ulimit -n 4",
    "files smaller than stdin": "ulimit -f 160",  # in half KiB
    "an empty verb": "CNI_COMMAND=",
    "more stdin than is read": "head -c 9000000 /dev/zero > /run/zeros; exec < /run/zeros",
    "more variables than a packet takes": "export A=$(head -c 100000 /dev/zero | tr '\\0' a); export B=$A C=$A D=$A",
    "signals that are ignored": "trap '' CHLD HUP INT PIPE TERM USR1",
    "a reader of stdout that has gone": "rm -f /run/pipe; mkfifo /run/pipe; : < /run/pipe & exec > /run/pipe; wait",
    "a reader of stderr that has gone": "rm -f /run/pipe; mkfifo /run/pipe; : < /run/pipe & exec 2> /run/pipe; wait",
    "a directory that is gone": "mkdir /run/gone; cd /run/gone; rmdir /run/gone",
}


QUICK = (
    "all closed",
    "four descriptors",
    "an empty verb",
    "more stdin than is read",
    "a reader of stdout that has gone",
)


@pytest.mark.parametrize("caller", quick_of(CALLERS, *QUICK))
def test_a_caller_gets_the_answer_of_a_cold_call_to_the_byte(node: Node, pod: Pod, caller: str) -> None:
    """And the same is on the node after it."""
    config = network(unread="x" * (100 << 10))
    config["ipam"]["log_level"] = "debug"
    argv = ["sh", "-c", f'{caller}; exec "$0"', node.executables / "whereabouts"]

    def answers(more: dict[str, str]) -> list[tuple[int, bytes, list[str]]]:
        rows = []
        for verb in ("ADD", "DEL"):
            done = node.run(argv, env=environment(node, verb, pod) | more, stdin=json.dumps(config).encode())
            rows.append((done.returncode, done.stdout, node.leases()))
        node.cni("whereabouts", "DEL", config, netns=pod, more=warm.COLD).succeeded()
        return rows

    assert answers({}) == answers(warm.COLD)


# --- the socket ---


ANSWERS: dict[str, Callable[[], Iterable[bytes]]] = {  # of a server: a packet, and others after the call's request
    "another's": lambda: (b"h", b'1{"cniVersion": "1.1.0", "code": 7, "msg": "a lie"}'),
    "garbage": lambda: (b"\xff" * 100,),
    "hello": lambda: (b"h", b"+{", b""),
    "endless": lambda: itertools.chain([b"h"], itertools.repeat(b"+" + b"x" * 65536)),
    "end": lambda: (),
}


@contextlib.contextmanager
def listening(path: str, what: str) -> Iterator[None]:
    """A server at `path` with these answers; another's belongs to another user than root."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    with AnotherUser() if what == "another's" else contextlib.nullcontext():
        server.listen(10)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    for number, packet in enumerate(ANSWERS[what]()):
                        if number == 1:
                            connection.recv(1 << 16)
                        connection.send(packet)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize("what", quick(["nothing", "file", "directory", *ANSWERS], "file", "another's", "endless"))
def test_whatever_lies_where_the_workers_listen_a_call_is_served(node: Node, pod: Pod, what: str) -> None:
    (path,) = warm.sockets(node)
    warm.end(node)
    assert not os.path.exists(path)
    if what == "file":
        Path(path).write_bytes(b"\0garbage" * 100)
    elif what == "directory":
        Path(path).mkdir()
    with listening(path, what) if what in ANSWERS else contextlib.nullcontext():
        for number in range(3):
            cycle(node, pod, f"c{number}")
    assert node.leftovers(settle=2) == []
    if what in ("nothing", "file"):
        assert until(lambda: any(w.workers for w in warm.found(node)))


@pytest.mark.parametrize("what", quick(["nothing", "file", "another's"], "another's"))
def test_workers_whose_socket_is_not_in_its_place_any_more_end(node: Node, pod: Pod, what: str) -> None:
    """And leave alone what is there."""
    (path,) = warm.sockets(node)
    former = set(warm.of_node(node))
    os.unlink(path)
    if what == "file":
        Path(path).touch()
    with listening(path, what) if what in ANSWERS else contextlib.nullcontext():
        assert until(lambda: not former.intersection(warm.of_node(node)))
        assert os.path.exists(path) == (what != "nothing")
        cycle(node, pod)


def test_a_worker_says_nothing_to_another_user(node: Node, pod: Pod) -> None:
    """Even where the socket's directory would let them in."""
    (path,) = warm.sockets(node)
    for opened in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        os.chmod(opened, 0o777)
    before = warm.of_node(node)
    there = os.open(os.path.dirname(path), os.O_PATH)  # /proc/PID/root is closed to them
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(100)
        with AnotherUser():
            connection.connect(f"/proc/self/fd/{there}/{os.path.basename(path)}")
        assert connection.recv(16) == b""
    os.close(there)
    assert set(warm.of_node(node)) <= set(before)  # none is replaced; one that waited too long may end


def test_a_directory_that_others_can_write_gets_no_workers(node: Node, pod: Pod) -> None:
    warm.end(node)
    shutil.rmtree(node.path(protocol.DIRECTORY))
    node.path(protocol.DIRECTORY).mkdir()
    os.chown(node.path(protocol.DIRECTORY), 65534, 65534)
    cycle(node, pod)
    assert warm.of_node(node) == []


def test_a_flood_of_connections_that_say_nothing_hinders_no_call(node: Node, pod: Pod) -> None:
    (path,) = warm.sockets(node)
    held = []
    for _ in range(300):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.connect(path)
        held.append(connection)
    cycle(node, pod)
    for connection in held:
        connection.close()
    cycle(node, pod, "c2")
    assert node.leftovers() == []


ODD_CALLER = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.umask(0o31)
os.chdir("/run")
os.dup2(os.open("/run/odd", os.O_RDWR | os.O_CREAT), 7)
open("/proc/self/oom_score_adj", "w").write("500")
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.nice(7)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_workers_have_nothing_of_the_call_that_has_left_them_behind(node: Node) -> None:
    """And its runtime, which reads stdout to the end, waits for none of them."""
    warm.end(node)
    done = called_through(node, INTERPRETER, "-IS", "-c", ODD_CALLER, X="1")
    assert done.returncode == 0, done.stdout
    assert until(lambda: any(w.workers for w in warm.found(node)))
    supervisor = state_of(node).supervisor
    status = Path("/proc/self/status").read_text().splitlines()
    plain = {line.partition(":")[0]: line.split()[-1] for line in status if line.startswith("Sig")}
    of_libc = int(plain["SigIgn"], 16) & 3 << 31  # the signals 32 and 33, which no Python can set
    ignored = of_libc | 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1  # as in every Python
    for process in warm.of_node(node):
        assert (os.getsid(process), os.readlink(f"/proc/{process}/cwd")) == (supervisor, "/")
        scheduled = os.sched_getscheduler(process), os.getpriority(os.PRIO_PROCESS, process)
        assert (*scheduled, os.sched_getaffinity(process)) == (os.SCHED_OTHER, 0, os.sched_getaffinity(1))
        assert [Path(f"/proc/{process}/{file}").read_text() for file in ("oom_score_adj", "environ")] == ["0\n", ""]
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        has = {line.partition(":")[0]: line.split()[-1] for line in status if ":" in line}
        assert (has["Umask"], has["SigBlk"], int(has["SigIgn"], 16)) == ("0077", plain["SigBlk"], ignored)
        files = {int(name): os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")}
        assert [files[number] for number in range(3)] == ["/dev/null"] * 3
        assert not {path for path in files.values() if path.startswith("/run/") and protocol.DIRECTORY not in path}


# A filter of system calls that refuses setns, by which a plugin enters a pod (linux/filter.h, linux/seccomp.h).
FILTERED_CALLER = """
import ctypes, os, platform, struct, sys
setns = {"x86_64": 308, "aarch64": 268}[platform.machine()]
rules = ((0x20, 0, 0, 0), (0x15, 0, 1, setns), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
program = struct.pack("@HP", len(rules), ctypes.addressof(code))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
LIMITED = {
    "few descriptors": ["sh", "-c", 'ulimit -n 64; exec "$0"'],
    "little memory": ["sh", "-c", 'ulimit -v 4000000; exec "$0"'],
    "a filter of system calls": [INTERPRETER, "-I", "-c", FILTERED_CALLER],
}


# --- the end ---
def test_the_command_shows_the_workers_and_ends_them(node: Node, pod: Pod) -> None:
    cycle(node, pod)
    shown = json.loads(node.railcni("warm", "status", "-o", "json").stdout)
    assert (shown[0]["calls"], shown[0]["fault"]) == (warm.served(node), "")
    assert b"workers" in node.railcni("warm", "status").stdout
    assert b"have ended" in node.railcni("warm", "stop").stdout
    assert (warm.of_node(node), os.listdir(node.path(protocol.DIRECTORY))) == ([], ["cold"])
    assert b"no workers" in node.railcni("warm", "stop").stdout + node.railcni("warm", "status").stdout
    node.cni("whereabouts", "STATUS", warm.NOTHING).succeeded()
    assert until(lambda: any(w.workers for w in warm.found(node)))


def test_workers_that_must_end_finish_what_they_serve(node: Node, pod: Pod) -> None:
    with in_the_middle(node, pod) as (call, worker):
        stopping = threading.Thread(target=node.railcni, args=("warm", "stop"))
        stopping.start()
        assert until(lambda: warm.sockets(node) == [])
        assert worker in warm.of_node(node)
        node.cni("whereabouts", "STATUS", warm.NOTHING).succeeded()
        node.path("/run/others/waits").unlink()
        assert call.finish().succeeded()["ips"][0]["address"] == "10.9.0.7/24"
        stopping.join(30)
    detached(node, pod)


@pytest.mark.parametrize("off", quick([{"workers": 0}, {"idleSeconds": 0}], {"workers": 0}))
def test_the_administrator_switches_them_off_also_by_a_link_that_turns(node: Node, pod: Pod, off: Any) -> None:
    """As kubelet mounts a ConfigMap: the link `railcni.json` stays, and one in its path turns."""
    policy = node.path("/etc/cni/net.d/whereabouts.d/railcni.json")
    for name, block in (("former", {"workers": 1}), ("later", off)):
        policy.parent.joinpath(name).mkdir(parents=True)
        policy.parent.joinpath(name, policy.name).write_text(json.dumps({"warm": block}))
    policy.parent.joinpath("data").symlink_to("former")
    policy.symlink_to(f"data/{policy.name}")
    assert until(lambda: are_ready(node, 1))
    policy.parent.joinpath("turning").symlink_to("later")
    policy.parent.joinpath("turning").rename(policy.parent / "data")
    assert until(lambda: warm.of_node(node) == [])
    cycle(node, pod)
    assert warm.of_node(node) == []


def test_workers_end_when_no_call_comes(node: Node, pod: Pod) -> None:
    node.allow(warm={"idleSeconds": 2})
    assert until(lambda: warm.of_node(node) == [])
    node.cni("whereabouts", "STATUS", warm.NOTHING).succeeded()
    assert until(lambda: any(w.workers for w in warm.found(node)))
    assert until(lambda: warm.of_node(node) == [])
    assert os.listdir(node.path(protocol.DIRECTORY)) == ["cold"]


FIRST_PROCESS = """
import subprocess, sys
for line in sys.stdin:
    given = sys.stdin.readline().encode()
    subprocess.run(line.split(), input=given, stdout=subprocess.DEVNULL, check=True)
    print("done", flush=True)
"""


class Container:
    """A PID namespace of the node. Its process 1 waits only for the calls that it makes itself."""

    def __init__(self, node: Node) -> None:
        env = {"CNI_COMMAND": "STATUS", "CNI_PATH": "/"}
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", INTERPRETER, "-IS", "-c", FIRST_PROCESS]
        self._outer = node.start(argv, env=env)
        self._call = str(node.executables / "whereabouts")

    def call(self, *before: str) -> None:
        """Have process 1 make a call that succeeds, behind the words `before`."""
        assert self._outer.stdin and self._outer.stdout
        self._outer.stdin.write(f"{' '.join((*before, self._call))}\n{json.dumps(warm.NOTHING)}\n".encode())
        self._outer.stdin.flush()
        assert self._outer.stdout.readline() == b"done\n"

    def inherited(self) -> dict[int, str]:
        """The children of process 1 and their states: Z is a zombie."""
        ((first, _),) = _children(self._outer.pid)
        return dict(_children(first))

    def end(self) -> None:
        self._outer.kill()
        self._outer.wait()


def _children(parent: int) -> list[tuple[int, str]]:
    """The children of a process and their states."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, above, *_ = file.read_text().rpartition(")")[2].split()
            if int(above) == parent:
                found.append((int(file.parent.name), state))
    return found


@pytest.fixture
def container(node: Node) -> Iterator[Container]:
    container = Container(node)
    yield container
    container.end()


def test_where_the_first_process_waits_for_none_idle_workers_leave_no_zombie(node: Node, container: Container) -> None:
    node.allow(warm={"idleSeconds": 2})
    container.call()
    (supervisor,) = container.inherited()
    for _ in range(2):
        assert until(lambda: supervisor in [w.supervisor for w in warm.found(node) if w.workers])
        assert until(lambda: not _children(supervisor))
        container.call()
        assert list(container.inherited()) == [supervisor]
    assert container.inherited()[supervisor] != "Z"


@pytest.mark.parametrize("limits", LIMITED.values(), ids=LIMITED)
def test_a_call_with_tight_limits_leaves_no_process(node: Node, container: Container, limits: list[str]) -> None:
    """Its workers would serve others, who have none of these limits."""
    node.script("/run/limited", f'#!/bin/sh\nexec {shlex.join(limits)} "$@"\n')
    container.call("/run/limited")
    assert container.inherited() == {}


def test_without_a_compiler_all_calls_are_cold(node: Node, pod: Pod, tmp_path: Path) -> None:
    if IS_BUNDLE:
        pytest.skip("makes a checkout: unset RAILCNI_BIN")
    for part in ("bin", "cni", "ipam"):
        made_by_make = os.listdir(ROOT / "libexec") if part == "bin" else []
        ignored = shutil.ignore_patterns("__pycache__", "cli", "modules.*", *made_by_make)
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "Makefile", tmp_path)
    made = subprocess.run(["make", "-s", "plugins", "CC=/no/cc"], cwd=tmp_path, capture_output=True, text=True)
    assert (made.returncode, "no native launcher" in made.stderr) == (0, True), made
    before = warm.served(node)
    for verb in ("ADD", "DEL"):
        node.cni(tmp_path / "bin/macvlan", verb, network(), netns=pod, path=[tmp_path / "bin"]).succeeded()
    for redirection in UNREADABLE:
        done = node.run(
            ["sh", "-c", f'exec "$0" {redirection}', tmp_path / "bin/macvlan"], env=environment(node, "ADD", pod)
        )
        assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 5)
    assert warm.served(node) == before and len(warm.sockets(node)) == 1
    assert node.leftovers() == []


# --- several versions, and both ways, on one pool ---
@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The executables of another version."""
    if IS_BUNDLE:
        pytest.skip("makes a checkout of another version: unset RAILCNI_BIN")
    top = tmp_path / "other"
    for part in ("bin", "cni", "ipam", "libexec"):
        shutil.copytree(ROOT / part, top / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "cli"))
    with open(top / "ipam/add.py", "a") as module:
        module.write("\nOTHER = True\n")
    interpreter = (top / "libexec/macvlan").read_text().partition("\n")[0][2:].split()[0]
    subprocess.run([interpreter, "-I", top / "cni/compiled/pack.py"], check=True)
    return top / "bin"


def test_two_versions_serve_one_pool_each_with_its_own_workers(node: Node, other: Path) -> None:
    node.cni(other / "whereabouts", "STATUS", warm.NOTHING, path=[other]).succeeded()
    assert until(lambda: len([w for w in warm.found(node) if w.workers]) == 2)
    pods = [node.pod(f"p{number}") for number in range(12)]
    ways = [(node.executables, {}), (other, {}), (node.executables, warm.COLD)]
    before = warm.served(node)

    def at_once(verb: str) -> list[Reply]:
        calls = []
        for number, p in enumerate(pods):
            folder, env = ways[number % 3]
            how = {"netns": p, "container_id": p.name, "path": [folder], "more": env}
            calls.append(node.start_cni(folder / "macvlan", verb, network(), **how))
        return node.cni_at_once(calls)

    given = [a["address"] for reply in at_once("ADD") for a in reply.succeeded()["ips"]]
    assert len(set(given)) == len(pods)
    assert warm.served(node) >= before + len(pods) // 2
    for reply in at_once("DEL"):
        reply.succeeded()
    assert node.leftovers(settle=2) == []


def test_modules_that_change_end_the_workers_that_have_the_former_ones(node: Node, other: Path) -> None:
    node.cni(other / "whereabouts", "STATUS", warm.NOTHING, path=[other]).succeeded()
    assert until(lambda: len([w for w in warm.found(node) if w.workers]) == 2)
    with open(other.parent / "ipam/add.py", "a") as module:
        module.write("\nANOTHER = True\n")
    subprocess.run([sys.executable, "-I", other.parent / "cni/compiled/pack.py"], check=True)
    assert until(lambda: len(warm.found(node)) == 1)
    node.cni(other / "whereabouts", "STATUS", warm.NOTHING, path=[other]).succeeded()
    assert until(lambda: len([w for w in warm.found(node) if w.workers]) == 2)


@pytest.mark.long
def test_calls_go_on_while_versions_are_installed_by_turns(node: Node, other: Path, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    versions = [content.checkout(str(ROOT)), content.checkout(str(other.parent))]
    folder = Folder(str(plugins), str(plugins))
    change.install(folder, versions[0])
    config = network()
    config["ipam"]["type"] = "railcni-whereabouts"
    ended = threading.Event()
    replies: list[Reply] = []

    def calls(p: Pod) -> None:
        while not ended.is_set():
            for verb in ("ADD", "DEL"):
                executable = plugins / "railcni-macvlan"
                replies.append(node.cni(executable, verb, config, netns=p, container_id=p.name, path=[plugins]))

    threads = [threading.Thread(target=calls, args=(node.pod(f"p{number}"),)) for number in range(3)]
    for thread in threads:
        thread.start()
    served = 0
    try:
        for turn in range(1, 5):
            assert until(lambda: len([w for w in warm.found(node) if w.calls]) > 0)
            served += warm.served(node)
            change.install(folder, versions[turn % 2])
            stopped = node.railcni("warm", "stop")
            assert stopped.returncode == 0, stopped
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [reply.document for reply in replies if reply.status] == []
    assert served > 0
    assert node.leftovers(settle=2) == []


# What stands in for a supervisor: it locks, listens some time later, and ends when asked; then the next one may have the lock.
_SUPERVISOR = """
import fcntl, os, signal, socket, sys, time
os.chdir(sys.argv[1])
lock = open("one.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork():
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("one.sock")
    print("locked", flush=True)
    time.sleep(0.5)
    signal.signal(signal.SIGTERM, lambda *_: (os.unlink("one.sock"), os._exit(0)))
    listening.listen()
elif sys.argv[2]:
    lock = open("one.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
else:
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("successor", ["", "and the next one begins at once"])
def test_stop_waits_for_the_end_of_those_that_there_were(successor: str) -> None:
    with tempfile.TemporaryDirectory() as root:  # a short path, as a socket's must be
        folder = Path(root + protocol.DIRECTORY)
        folder.mkdir(parents=True)
        argv = [sys.executable, "-c", _SUPERVISOR, folder, successor]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, process_group=0) as supervisor:
            assert supervisor.stdout and supervisor.stdout.readline() == b"locked\n"
            reaper = threading.Thread(target=supervisor.wait)  # as init does: nothing is left of it when it has ended
            reaper.start()
            try:
                assert command.stop(root, 10) == 1
                assert until(lambda: supervisor.poll() == 0)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(supervisor.pid, signal.SIGKILL)
                reaper.join()


# --- killed at a system call ---
@contextlib.contextmanager
def traced(node: Node, *options: str, process: int = 0) -> Iterator[list[str]]:
    """strace at `process`, by default the only worker, until the block ends; then the list has the names of its calls."""
    worker = process or workers_of(node)[0]
    names: list[str] = []
    log = node.path("/run/trace")
    log.unlink(missing_ok=True)
    argv = ["strace", "-qq", "-o", str(log), "-p", str(worker), *options]
    strace = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: b"TracerPid:\t0\n" not in Path(f"/proc/{worker}/status").read_bytes())
        yield names
    finally:
        strace.terminate()
        strace.wait()
        names += [line.partition("(")[0] for line in log.read_text().splitlines() if "(" in line]


@needs_strace
@pytest.mark.parametrize("verb", quick(["ADD", "DEL"], "ADD"))
@workers(1)
def test_a_worker_that_is_killed_at_a_system_call_is_made_up_for(node: Node, pod: Pod, verb: str) -> None:
    def call(each: str) -> Reply:
        return node.cni("macvlan", each, network(), netns=pod)

    call("DEL").succeeded()
    assert until(lambda: are_ready(node, 1))
    for _ in range(2):  # what is done once is done
        call("ADD").succeeded()
        call("DEL").succeeded()
    if verb == "DEL":
        call("ADD").succeeded()
    with traced(node) as names:
        call(verb).succeeded()
    call("DEL").succeeded()
    first, last = names.index("recvmsg") + 1, max(n for n, name in enumerate(names) if name == "sendto")
    points = [(names[n], names[: n + 1].count(names[n])) for n in range(first, last + 1, max(1, (last - first) // 5))]
    for name, ordinal in points:
        assert until(lambda: are_ready(node, 1))
        if verb == "DEL":
            call("ADD").succeeded()
        with traced(node, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={ordinal}"):
            reply = call(verb)
        assert reply.status == 0, (name, ordinal, reply)
        if verb == "ADD":
            assert pod.view.link("net1").texts == reply.addresses, (name, ordinal)
            call("DEL").succeeded()
        assert node.leftovers(settle=2) == [], (name, ordinal)


def launched(node: Node, verb: str, pod: Pod, *options: str) -> subprocess.CompletedProcess[bytes]:
    """A call whose launcher is traced, into /run/trace of the node; a worker serves it nevertheless."""
    argv = ["env", "strace", "-qq", "-o", "/run/trace", *options, node.executables / "macvlan"]
    return node.run(argv, env=environment(node, verb, pod), stdin=json.dumps(network()).encode())


def launchers_calls(node: Node, verb: str, pod: Pod) -> list[tuple[str, int]]:
    """The system calls of a launcher that a worker serves, after those with which its C library starts: each by its name
    and as the n-th of that name."""
    assert launched(node, verb, pod).returncode == 0
    text = node.path("/run/trace").read_text()
    names = [line.partition("(")[0] for line in text.splitlines() if "(" in line]
    assert "sendmsg" in names and names.count("execve") == 1, text
    start = max(n for n, name in enumerate(names) if name in ("set_tid_address", "mprotect")) + 1
    return [(name, names[: n + 1].count(name)) for n, name in enumerate(names) if n >= start]


@needs_strace
@pytest.mark.parametrize("verb", quick(["ADD", "DEL"], "DEL"))
def test_a_launcher_that_is_killed_at_a_system_call_leaves_nothing_for_good(node: Node, pod: Pod, verb: str) -> None:
    cycle(node, pod)
    if verb == "DEL":
        node.cni("macvlan", "ADD", network(), netns=pod).succeeded()
    points = launchers_calls(node, verb, pod)
    node.cni("macvlan", "DEL", network(), netns=pod).succeeded()
    for name, ordinal in points:
        if verb == "DEL":
            node.cni("macvlan", "ADD", network(), netns=pod).succeeded()
        done = launched(node, verb, pod, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={ordinal}")
        assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (name, ordinal, done)
        node.cni("macvlan", "DEL", network(), netns=pod).succeeded()
        assert node.leftovers(settle=2) == [], (name, ordinal)
    cycle(node, pod)


@needs_strace
@pytest.mark.parametrize("error", quick(["EINTR", "ENOMEM", "EMFILE"], "EINTR"))
def test_a_launcher_whose_system_call_fails_has_the_call_served_cold(node: Node, pod: Pod, error: str) -> None:
    """Or refused, where stdin was read in part already, or the reply cannot be written. A signal is no failure."""
    points = launchers_calls(node, "ADD", pod)
    node.cni("macvlan", "DEL", network(), netns=pod).succeeded()
    for name, ordinal in points:
        if name == "exit_group":
            continue
        done = launched(node, "ADD", pod, "-e", f"trace={name}", "-e", f"inject={name}:error={error}:when={ordinal}")
        may_fail = (name, ordinal) in (("read", 2), ("write", 1), ("write", 2)) and (name, error) != ("read", "EINTR")
        assert done.returncode == may_fail, (name, ordinal, done)
        if done.stdout:
            document = json.loads(done.stdout)
            said = (document["code"], "all of stdin" in document["msg"]) if may_fail else bool(document["ips"])
            assert said == ((5, True) if may_fail else True)
        node.cni("macvlan", "DEL", network(), netns=pod).succeeded()
        assert node.leftovers(settle=2) == [], (name, ordinal)
