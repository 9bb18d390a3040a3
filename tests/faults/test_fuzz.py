"""Whatever comes in, a plugin answers with a result or an error of the CNI spec, soon, and within bounds.

In `make test` each test draws the same examples every time; `make fuzz` draws others, many more, and prints its seed.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni.link.features import verbs_device
from cni.link.plugins import macvlan, whereabouts
from cni.link.plugins import rdma as chained
from cni.link.plugins.host_device import plugin as host_device
from cni.link.plugins.sriov import plugin as sriov
from cni.shared import policy, rail
from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec import codec, parsing, request, result
from cni.shared.spec.errors import CniError, Internal
from cni.shared.spec.request import Attachment, Request
from ipam import config as ipam_config
from ipam import source
from tests import each, warm
from tests.blackbox.test_host_device import PCI, bus
from tests.faults import hostile
from tests.node import GO_PLUGINS, STATE, Node, unusable

TIMES = int(os.environ.get("FUZZ", "1"))
CODES = {1, 2, 4, 5, 6, 7, 8, 11, 50, 51, 100, 101, 102, 103}
SECONDS, MEGABYTES = 2, 200


def examples(number: int) -> Callable[..., Any]:
    """So many examples in `make test`, FUZZ times as many in `make fuzz`."""
    return settings(
        max_examples=number * TIMES, derandomize=TIMES == 1, deadline=None, suppress_health_check=list(HealthCheck),
        print_blob=True,
    )  # fmt: skip


def answer(call: Callable[[], Any]) -> Any:
    """What `call` returns, or the CniError that it raises; AssertionError for an error that no caller could use."""
    began = time.process_time()
    try:
        answered = call()
    except CniError as fault:
        document = json.loads(codec.dumps(fault.document("1.1.0")))
        assert not isinstance(fault, Internal)
        assert document["code"] in CODES, document
        assert document["msg"].strip(), document
        answered = fault
    assert time.process_time() - began < SECONDS
    return answered


class Files:
    """A flat file with this content, and no node policy."""

    def __init__(self, content: bytes | None) -> None:
        self._content = content

    def load(self, path: str, /) -> bytes | None:
        return self._content if path in (*source.PATHS, "/nodes/nodename") else None

    def follow(self, path: str, roots: str = "", /) -> str:
        return source.OF_NODE.follow(path, roots)

    def allow_host(self, host: str, /) -> None:
        source.OF_NODE.allow_host(host)

    def host_name(self) -> str:
        return "host"


@examples(200)
@given(hostile.environments(hostile.ENVIRON), hostile.inputs(hostile.BASE))
def test_environment_and_stdin_are_read_or_refused(environ: dict[str, str], stdin: bytes) -> None:
    parsed = answer(lambda: request.parse(environ, stdin))
    assert request.version_of(stdin)
    if isinstance(parsed, Request):
        for read in (macvlan.read, host_device.read, sriov.read):
            answer(lambda read=read: read(parsed, []))
        answer(lambda: chained.read(parsed))
        answer(lambda: rail.read(parsed.config, []))
        answer(lambda: verbs_device.read(request.member(parsed.config, "rdma"), parsed, []))
        answer(lambda: ipam_config.read(parsed, Files(None)))
        previous = answer(lambda: parsing.parse(request.member(parsed.config, "prevResult")))
        if isinstance(previous, result.Result):
            answer(lambda: previous.document(parsed.cni_version))


@examples(80)
@given(hostile.inputs({**hostile.BASE["ipam"], "configuration_path": "/nodes"}))
def test_a_flat_file_is_read_or_refused(content: bytes) -> None:
    block = {"type": "whereabouts", "datastore": "file", "range": "192.168.111.0/24"}
    asked = Request({"CNI_COMMAND": "ADD"}, b"", {"name": "fuzz", "ipam": block}, {})
    answer(lambda: ipam_config.read(asked, Files(content)))


@examples(80)
@given(hostile.inputs(hostile.POLICY), hostile.words)
def test_a_node_policy_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, word: str) -> None:
    path = tmp_path_factory.getbasetemp() / "railcni.json"
    path.write_bytes(content)
    path.chmod(0o600)
    read = answer(lambda: policy.read(str(path)))
    if isinstance(read, policy.Policy):
        answer(lambda: read.permit("masters", "master", [word]))
        for key in ("dataRoots", "logRoots", "configRoots", "deviceInfoRoots"):
            try:
                assert read.confine(key, word).startswith("/")
            except ValueError as fault:
                assert str(fault)


@pytest.fixture(scope="module")
def attached() -> Iterator[Path]:
    """A state directory with leases and records, as real calls left it."""
    with tempfile.TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(policy, "_current", policy.Policy({"dataRoots": ["/"]}))
            for container in ("c1", "c2", "c3"):
                call("ADD", Path(folder), container)
            Records(folder).write(
                Attachment("fuzz", "c1", "net1"), "link", {"netns": "/run/netns/pod1", "link": {"mtu": 7}}
            )
        yield Path(folder)


def call(verb: str, state: Path, container: str = "c1", block: dict[str, Any] | None = None) -> Any:
    ipam = {
        "type": "whereabouts", "datastore": "file", "range": "192.168.111.0/28", "dataDir": str(state),
        **(block or {}),
    }  # fmt: skip
    environ = {**hostile.ENVIRON, "CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_ARGS": ""}
    previous = {"cniVersion": "1.1.0", "ips": [{"address": "192.168.111.1/28"}]}
    config = {
        "cniVersion": "1.1.0", "name": "fuzz", "ipam": ipam, "prevResult": previous, "cni.dev/valid-attachments": [],
    }  # fmt: skip
    return whereabouts.call(request.parse(environ, json.dumps(config).encode()), Log(level="panic"), str(state))


@pytest.fixture
def copy(attached: Path, tmp_path: Path, free_paths: None) -> Callable[[], Path]:
    """Makes a copy of the state, over the one before."""

    def make() -> Path:
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        return Path(shutil.copytree(attached, tmp_path / "state"))

    return make


@examples(25)
@given(data=st.data())
def test_a_damaged_record_is_never_believed(copy: Callable[[], Path], data: st.DataObject) -> None:
    state = copy()
    victim = data.draw(st.sampled_from(sorted((state / "attachments").iterdir())))
    whole = Records(str(state)).all()
    victim.write_bytes(hostile.damage(victim.read_bytes(), data.draw(hostile.damages)))
    left = answer(lambda: Records(str(state)).all())
    assert all(entry in whole for entry in left)
    for verb in data.draw(st.lists(st.sampled_from(hostile.VERBS), min_size=1, max_size=3)):
        answer(lambda verb=verb: call(verb, state))


@examples(40)
@given(data=st.data())
def test_a_damaged_lease_file_is_answered_with_an_error_that_a_retry_clears(
    copy: Callable[[], Path], data: st.DataObject
) -> None:
    state = copy()
    victim = state / data.draw(st.sampled_from(["leases.db", "leases.db", "leases.db", "leases.db-journal"]))
    victim.write_bytes(hostile.damage(victim.read_bytes(), data.draw(hostile.damages)))
    for verb in data.draw(st.lists(st.sampled_from(hostile.VERBS), min_size=1, max_size=4)):
        answer(lambda verb=verb: call(verb, state, data.draw(st.sampled_from(["c1", "c2", "new"]))))


@examples(60)
@given(verb=st.sampled_from(hostile.VERBS), block=hostile.changed(hostile.BASE["ipam"], 6), more=st.data())
def test_the_verbs_of_the_ipam_plugin_serve_or_refuse_any_block(
    copy: Callable[[], Path], verb: str, block: dict[str, Any], more: st.DataObject
) -> None:
    state = copy()
    block = {**block, "dataDir": str(state), "log_file": ""}
    config = {**more.draw(hostile.changed(hostile.BASE, 2)), "ipam": block}
    environ = more.draw(hostile.environments(hostile.ENVIRON)) | {"CNI_COMMAND": verb}
    asked = answer(lambda: request.parse(environ, json.dumps(config).encode()))
    if isinstance(asked, Request):
        answer(lambda: whereabouts.call(asked, Log(level="panic"), str(state)))


class Site:
    """A node on which plugins are run within bounds."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._pod = node.pod("pod1")
        node.master()
        bus(node, "pci", PCI, "ens9", driver="mlx5_core")
        node.run(["sh", "-c", "cp -a /etc /run/etc && mount --bind /run/etc /etc && mount -t tmpfs tmpfs /var/log"])
        self._policy = node.path("/etc/cni/net.d/whereabouts.d/railcni.json")
        self._flat = self._policy.with_name("whereabouts.conf")
        self._flat.parent.mkdir(parents=True, exist_ok=True)

    def call(self, plugin: str, environ: dict[str, str], stdin: bytes) -> Any:
        """The answer of a plugin: its result, None or its error; AssertionError when it is none, or out of bounds."""
        bounds = ["prlimit", f"--as={MEGABYTES << 20}", f"--cpu={SECONDS}"]
        environ = {"PATH": "/usr/bin:/bin", "CNI_PATH": f"{self.node.executables}:{GO_PLUGINS}", **environ}
        if self.node.is_warm and not warm.sockets(self.node):  # the bounds and a hostile policy leave none
            self.node.start_cni("whereabouts", "STATUS", warm.NOTHING).finish()
        done = self.node.run([*bounds, self.node.executables / plugin], env=environ, stdin=stdin, timeout=20)
        shown = f"exit {done.returncode}: {done.stdout[:1000]!r} {done.stderr[-1000:]!r}"
        assert done.returncode in (0, 1), shown
        assert b"Traceback" not in done.stderr, shown
        document = json.loads(done.stdout) if done.stdout.strip() else None
        if done.returncode:
            assert document["code"] in CODES | set(range(1, 100)), shown  # up to 99: another plugin's own
            assert document["msg"].strip(), shown
            assert "out of memory" not in document["msg"], shown
        elif document and environ.get("CNI_COMMAND") == "ADD":
            parsing.parse(document)
        return document

    def begin(self) -> None:
        """Nothing is attached, whatever the call before did, and nothing is recorded."""
        shutil.rmtree(self.node.path(STATE), ignore_errors=True)
        for name in set(self._pod.view.names()) - {"lo"}:
            self._pod.view.delete(name)
        if "ens9" not in self.node.host.names():
            self.node.host.add_veth("ens9", "ens9-peer")

    def put(self, policy: bytes | None, flat: bytes | None) -> None:
        for path, content in ((self._policy, policy), (self._flat, flat)):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
                path.chmod(0o600)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if why := unusable():
        pytest.skip(why)
    with Node() as node:
        yield Site(node)


PLUGINS = st.sampled_from(each.PLUGINS)
ENVIRON = {name: value for name, value in hostile.ENVIRON.items() if name != "CNI_PATH"}


@examples(20)
@given(
    plugin=PLUGINS, environ=hostile.environments(ENVIRON), stdin=hostile.inputs(hostile.BASE),
    policy=st.none() | hostile.inputs(hostile.POLICY), flat=st.none() | hostile.inputs(hostile.BASE["ipam"]),
)  # fmt: skip
def test_an_executable_answers_whatever_it_is_called_with(
    site: Site, plugin: str, environ: dict[str, str], stdin: bytes, policy: bytes | None, flat: bytes | None
) -> None:
    site.begin()
    site.put(policy, flat)
    site.call(plugin, environ, stdin)


def tamper(path: Path, how: str, steps: hostile.Damage, target: str, mode: int) -> None:
    """Do something to the file at `path` that should not be done."""
    if how == "content":
        path.write_bytes(hostile.damage(path.read_bytes(), steps))
    elif how == "mode":
        path.chmod(mode)
    elif how == "owner":
        os.chown(path, 12345, 12345)
    elif how == "endless":
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
        if how == "link":
            path.symlink_to(target)
        elif how == "fifo":
            os.mkfifo(path)
        elif how == "directory":
            path.mkdir()


RECORDS = [f"attachments/fuzz:c1:net1:{part}" for part in ("ipam", "link")]


@examples(8)
@given(
    plugin=PLUGINS, name=st.sampled_from(["leases.db", "leases.db-journal", "lock", *RECORDS]),
    how=st.sampled_from(["content", "content", "link", "fifo", "directory", "gone", "mode", "owner", "endless"]),
    steps=hostile.damages, target=st.sampled_from(["/dev/zero", "/etc/passwd", "/nowhere", "lock"]),
    mode=st.sampled_from([0, 0o666, 0o4777]), verbs=st.lists(st.sampled_from(hostile.VERBS), min_size=1, max_size=3),
)  # fmt: skip
def test_an_executable_answers_whatever_its_state_has_become(
    site: Site, plugin: str, name: str, how: str, steps: hostile.Damage, target: str, mode: int, verbs: list[str]
) -> None:
    site.begin()
    site.put(None, None)
    environ = {**ENVIRON, "CNI_COMMAND": "ADD"}
    stdin = hostile.text_of(hostile.BASE)
    site.call(plugin, environ, stdin)
    victim = site.node.path(f"{STATE}/{name}")
    if victim.exists():
        tamper(victim, how, steps, target, mode)
    for verb in verbs:
        site.call(plugin, environ | {"CNI_COMMAND": verb}, stdin)
