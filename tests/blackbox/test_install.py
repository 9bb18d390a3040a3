"""railcni install and uninstall on real folders: whole at every moment, whoever is killed; others are left alone."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni.cli import install as install_command
from cni.cli import main as command
from cni.node.installation import change, content
from cni.node.installation.change import Folder
from cni.node.installation.layout import BUNDLE, NAMES, PLAIN, PREFIXED
from cni.shared.kernel import netns_users
from cni.shared.records import Records
from cni.shared.spec.errors import CniError, IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment
from tests.node import CHROOT, ROOT, Node
from tests.users import AnotherUser

NOWHERE = "/nowhere"  # in place of /usr/local/bin, which is this machine's
COMMAND = [sys.executable, "-IP", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from cni.cli import install; install.COMMANDS = {NOWHERE!r}; from cni.cli.main import main; sys.exit(main())"]  # fmt: skip


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


Bundles = tuple[content.Content, content.Content]
Capfd = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
EVERY = bool(os.environ.get("EVERY"))  # every point of the sweeps, not a dozen of them at random

PROGRAM = """#!/bin/sh
echo "CNI plugin {name} of railcni {release}" >&2
here=$(readlink -f "$0"); top=${{here%/*/*}}
[ -z "$SLOWLY" ] || sleep "$SLOWLY"
read a < "$top/lib/a"; read b < "$top/lib/deep/b"; echo "$a$b"
"""


def make_bundle(top: Path, mark: str) -> content.Content:
    """A bundle whose plugins print what two of its files hold."""
    for folder in ("bin", "lib/deep", "empty"):
        (top / folder).mkdir(parents=True)
    (top / "VERSION").write_text("1.0.0\n")
    for name in PLAIN:
        program(top / "bin" / name, PROGRAM.format(name=name, release=mark))
        (top / "bin" / f"railcni-{name}").symlink_to(name)
    (top / "lib/a").write_text(f"{mark}\n")
    (top / "lib/deep/b").write_text(f"{mark}\n")
    return content.bundle(str(top))


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    top = tmp_path_factory.mktemp("bundles")
    return make_bundle(top / "one", "A"), make_bundle(top / "two", "B")


@pytest.fixture(autouse=True)
def seen(monkeypatch: Patch) -> None:
    """What these tests start can be seen, also when they run in a container with PIDs of its own."""
    monkeypatch.setattr(netns_users, "sees_node", lambda: True)


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder in memory, where a sync costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def plugins(work: Path) -> Path:
    """A plugin folder with plugins of others."""
    folder = work / "plugins"
    folder.mkdir()
    for name in ("bridge", *PLAIN):
        program(folder / name, f"#!/bin/sh\necho {name} of others\n")
    return folder


def the(folder: Path) -> Folder:
    return Folder(str(folder), str(folder))


def listing(top: Path) -> dict[str, Any]:
    """All that is in a folder: links, modes and contents."""
    return {
        str(p.relative_to(top)): os.readlink(p)
        if p.is_symlink()
        else (p.stat().st_mode, p.is_file() and p.read_bytes())
        for p in sorted(top.rglob("*"))
    }


def said(program: Path, **environ: str) -> str:
    done = subprocess.run([program], capture_output=True, text=True, env={"PATH": os.environ["PATH"], **environ})
    assert done.returncode == 0, done
    return done.stdout.strip()


def install(plugins: Path, wanted: content.Content, replace: bool = False) -> list[str]:
    """Install `wanted`; return the steps that were needed."""
    folder = the(plugins)
    change.install(folder, wanted, PLAIN if replace else ())
    return folder.steps


def uninstall(plugins: Path) -> None:
    change.uninstall(the(plugins), lambda facts: None)


def railcni(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, **more)


@contextmanager
def running(plugins: Path, version: str, seconds: str = "60") -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a file of this version open."""
    with open(plugins / BUNDLE / version / "lib/a") as held:
        child = subprocess.Popen(["sleep", seconds], stdin=held)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


# --- what is installed ---
def test_by_default_prefixed_names_are_added_and_uninstall_leaves_no_trace(plugins: Path, bundles: Bundles) -> None:
    before = listing(plugins)
    install(plugins, bundles[0])
    now = listing(plugins)
    assert {n for n in now if "/" not in n} - {n for n in before if "/" not in n} == {BUNDLE, *PREFIXED}
    assert {n: now[n] for n in before} == before
    assert all(said(plugins / name) == "AA" for name in PREFIXED)
    assert (plugins / BUNDLE / "current/empty").is_dir()
    uninstall(plugins)
    assert listing(plugins) == before


def test_a_copy_for_a_plain_name_is_never_a_link(plugins: Path, tmp_path: Path) -> None:
    """Go's installer writes through it."""
    bundle = make_bundle(tmp_path / "linked", "A")
    programs = Path(bundle.top, "bin")
    programs.rename(programs.with_name("programs"))
    programs.symlink_to("programs")
    (programs / "macvlan").rename(programs / "macvlan-1")
    (programs / "macvlan").symlink_to("macvlan-1")
    install(plugins, content.bundle(bundle.top))
    plain = plugins / BUNDLE / "current/plain"
    assert not plain.is_symlink() and not (plain / "macvlan").is_symlink()
    assert said(plain / "macvlan") == "AA"


def test_what_replace_takes_comes_back(plugins: Path, bundles: Bundles) -> None:
    (plugins / "host-device").unlink()
    (plugins / "whereabouts").unlink()
    (plugins / "whereabouts").symlink_to("bridge")
    before = listing(plugins)
    install(plugins, bundles[0], replace=True)
    assert all(said(plugins / name) == "AA" for name in NAMES)
    install(plugins, bundles[1])  # without --replace they stay ours
    assert all(said(plugins / name) == "BB" for name in NAMES)
    assert said(plugins / "bridge") == "bridge of others"
    moved = plugins.rename(plugins.with_name("mounted"))  # as the folder of the host has another path in a container
    assert all(said(moved / name) == "BB" for name in NAMES)
    moved.rename(plugins)
    uninstall(plugins)
    assert listing(plugins) == before


def test_a_checkout_in_which_make_has_not_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(IoFailure, match=f"the checkout {tmp_path} has no plugins yet: run `make` there first"):
        content.checkout(str(tmp_path))


def test_an_upgrade_keeps_the_version_before_for_the_way_back(plugins: Path, tmp_path: Path, bundles: Bundles) -> None:
    one, two = bundles
    install(plugins, one)
    install(plugins, two)
    assert (said(plugins / PREFIXED[0]), (plugins / BUNDLE / "previous").readlink().name) == ("BB", one.version)
    install(plugins, content.bundle(str(plugins / BUNDLE / one.version)))
    assert (said(plugins / PREFIXED[0]), (plugins / BUNDLE / "previous").readlink().name) == ("AA", two.version)
    assert install(plugins, one) == []
    install(plugins, make_bundle(tmp_path / "three", "C"))
    kept = {one.version, content.bundle(str(tmp_path / "three")).version}
    assert {p.name for p in (plugins / BUNDLE).iterdir() if p.is_dir() and not p.is_symlink()} == kept


def test_a_version_that_something_runs_from_is_not_removed(plugins: Path, tmp_path: Path, bundles: Bundles) -> None:
    one, two = bundles
    install(plugins, one)
    three = make_bundle(tmp_path / "three", "C")
    with running(plugins, one.version) as child:
        install(plugins, two)
        install(plugins, three)
        assert (plugins / BUNDLE / one.version).is_dir()
        assert change.users_of(f"{plugins}/{BUNDLE}/{one.version}") == [child.pid]
    install(plugins, three)
    assert not (plugins / BUNDLE / one.version).exists()


def test_where_no_processes_are_seen_an_old_version_stays_for_an_hour(
    plugins: Path, tmp_path: Path, bundles: Bundles, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(netns_users, "sees_node", lambda: False)  # as in a container with PIDs of its own
    install(plugins, bundles[0])
    install(plugins, bundles[1])
    three = make_bundle(tmp_path / "three", "C")
    install(plugins, three)
    assert (plugins / BUNDLE / bundles[0].version).is_dir()
    os.utime(plugins / BUNDLE / "current", (0, 0), follow_symlinks=False)
    install(plugins, three)
    assert not (plugins / BUNDLE / bundles[0].version).exists()


def test_what_others_write_through_a_plain_name_stays_there(plugins: Path, tmp_path: Path, bundles: Bundles) -> None:
    """whereabouts' own image runs `cp -f /whereabouts /opt/cni/bin` at every start."""
    install(plugins, bundles[0], replace=True)
    program(tmp_path / "whereabouts", "#!/bin/sh\necho CNI whereabouts plugin >&2\n")
    subprocess.run(["cp", "-f", tmp_path / "whereabouts", plugins], check=True)
    assert said(plugins / "railcni-whereabouts") == "AA"
    shown = railcni("status", "--to", plugins, "--state-dir", tmp_path / "state")
    assert (shown.returncode, f"{plugins}/whereabouts is no longer railcni's" in shown.stdout) == (1, True)
    install(plugins, bundles[0], replace=True)
    assert said(plugins / "whereabouts") == said(plugins / "railcni-whereabouts") == "AA"


def test_what_root_may_not_link_is_kept_as_a_copy(plugins: Path, bundles: Bundles, monkeypatch: Patch) -> None:
    """Root in a container without capabilities, and a plugin that is another user's: fs.protected_hardlinks."""
    before = listing(plugins)

    def refuse(*names: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    install(plugins, bundles[0], replace=True)
    assert said(plugins / "macvlan") == "AA"
    uninstall(plugins)
    assert listing(plugins) == before


def test_a_plugin_that_others_put_in_our_place_is_what_uninstall_leaves(plugins: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0], replace=True)
    (plugins / "new").write_text("newer\n")
    (plugins / "new").rename(plugins / "macvlan")
    uninstall(plugins)
    assert (plugins / "macvlan").read_text() == "newer\n"
    assert said(plugins / "whereabouts") == "whereabouts of others"


# --- at every moment ---
def in_child(act: Callable[[], None], die_at: int = 0) -> tuple[bool, int]:
    """Run `act` in a child that is killed before the `die_at`-th change of the file system; whether it got to the end,
    and how many changes it made."""
    changes = ("os.rename", "os.symlink", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.chmod")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_CREAT | os.O_WRONLY)
            if event in changes or opens:
                count += 1
                if count == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(audit)
            act()
            os.write(writing, str(count).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return bool(text), int(text or 0)


def sweep(start: Path, work: Path, act: Callable[[Path], None], check: Callable[[Path], None]) -> int:
    """Kill `act` at each of its changes; then `check` the folder, do it again, and compare with an undisturbed run."""
    whole = work / "whole"
    shutil.copytree(start, whole, symlinks=True)
    done, changes = in_child(lambda: act(whole))
    assert done
    for die_at in range(1, changes + 1) if EVERY else random.sample(range(1, changes + 1), 12):
        folder = work / "folder"
        shutil.copytree(start, folder, symlinks=True)
        assert not in_child(lambda folder=folder: act(folder), die_at)[0]  # type: ignore[misc]
        check(folder)
        if listing(folder) != listing(whole):
            assert in_child(lambda folder=folder: act(folder))[0], die_at  # type: ignore[misc]
        assert listing(folder) == listing(whole), die_at
        shutil.rmtree(folder)
    return changes


def all_whole(folder: Path, others: tuple[str, ...] = ()) -> None:
    """Every name of ours that is there works, from one version; a plain name is never missing."""
    marks = {said(folder / name) for name in NAMES if (folder / name).is_symlink()}
    assert marks <= {"AA"} or marks <= {"BB"}, marks
    assert all((folder / name).exists() for name in ("bridge", *others))


def test_an_install_that_is_killed_anywhere_leaves_what_works(plugins: Path, work: Path, bundles: Bundles) -> None:
    changes = sweep(plugins, work, lambda f: install(f, bundles[0], True), lambda f: all_whole(f, PLAIN))
    assert changes > 40


@pytest.mark.long
def test_an_upgrade_that_is_killed_leaves_one_version_or_the_other(plugins: Path, work: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0], True)

    def check(folder: Path) -> None:
        all_whole(folder)
        assert all((folder / name).is_symlink() for name in NAMES)

    assert sweep(plugins, work, lambda f: install(f, bundles[1]), check) > 20


@pytest.mark.long
def test_an_uninstall_that_is_killed_anywhere_can_be_finished(plugins: Path, work: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0], True)
    assert sweep(plugins, work, uninstall, lambda folder: all_whole(folder, PLAIN)) > 20


@pytest.mark.long
def test_who_runs_a_plugin_while_versions_change_gets_a_whole_one(plugins: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0])
    stop = plugins.parent / "stop"
    loop = f"while [ ! -e {stop} ]; do {plugins}/railcni-macvlan 2>&- || echo failed; done"
    reader = subprocess.Popen(["sh", "-c", loop], stdout=subprocess.PIPE, text=True)
    try:
        for turn in range(1, 13):
            install(plugins, bundles[turn % 2])
            assert said(plugins / "railcni-macvlan", SLOWLY="0") == "AB"[turn % 2] * 2
    finally:
        stop.touch()
        out, _ = reader.communicate(timeout=30)
    assert set(out.split()) == {"AA", "BB"}


def test_uninstall_waits_for_the_calls_that_run(plugins: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0])
    began = time.monotonic()
    with running(plugins, bundles[0].version, "0.4"):
        uninstall(plugins)
        assert time.monotonic() - began >= 0.4
    assert not (plugins / BUNDLE).exists()


def dry_run(act: Callable[[], object], capfd: Capfd) -> list[str]:
    assert act() == 0
    return [line.strip() for line in capfd.readouterr().out.splitlines()[1:]]


def test_a_dry_run_lists_the_steps_that_are_then_done(plugins: Path, capfd: Capfd, monkeypatch: Patch) -> None:
    done: list[str] = []
    real = Folder.step

    def watched(folder: Folder, text: str, act: Callable[..., object], *arguments: object) -> None:
        if not folder.foresees:
            done.append(text)
        real(folder, text, act, *arguments)

    monkeypatch.setattr(Folder, "step", watched)
    links = plugins.with_name("links")
    links.mkdir()
    options = ("--to", plugins, "--link-dir", links)
    for verb in (("install",), ("install", "--replace"), ("uninstall", "--force")):
        foreseen = dry_run(lambda verb=verb: run(*verb, "--dry-run", *options), capfd)  # type: ignore[misc]
        assert run(*verb, *options) == 0
        capfd.readouterr()
        assert done == foreseen != []
        done.clear()


def test_a_dry_run_of_install_is_refused_where_install_is(
    public: Path, plugins: Path, another_user: AnotherUser, capfd: Capfd, monkeypatch: Patch
) -> None:
    readable = make_bundle(public / "bundle", "A")  # the checkout may be closed to the other user
    monkeypatch.setattr(content, "here", lambda: readable)
    for folder, hindrance, why in (
        (public, another_user, "Permission denied; run as root"),
        (plugins, the(plugins).locked(), "another railcni install or uninstall is at work"),
    ):
        with hindrance:
            for more in ([], ["--dry-run"]):
                assert run("install", "--to", folder, *more) == 1
                assert why in capfd.readouterr().err


def test_a_dry_run_of_install_tells_what_is_wrong_with_the_state(plugins: Path, tmp_path: Path, capfd: Capfd) -> None:
    (tmp_path / "state").touch()
    for more in (["--dry-run"], []):
        assert run("install", "--to", plugins, "--state-dir", tmp_path / "state", *more) == 0
        assert f"railcni: state directory {tmp_path}/state: it is no directory" in capfd.readouterr().err


def test_a_dry_run_of_uninstall_is_refused_where_uninstall_is(plugins: Path, bundles: Bundles, capfd: Capfd) -> None:
    def refused() -> str:
        assert run("uninstall", "--dry-run", "--to", plugins) == 1
        foreseen = capfd.readouterr().err
        assert run("uninstall", "--to", plugins) == 1
        assert capfd.readouterr().err == foreseen
        return foreseen

    told = refused()
    assert "railcni is not installed in" in told and told.rstrip().endswith("where it is with --plugin-dir")
    install(plugins, bundles[0])
    with the(plugins).locked():
        assert "another railcni install or uninstall is at work" in refused()
    with running(plugins, bundles[0].version) as child:
        steps = dry_run(lambda: run("uninstall", "--dry-run", "--to", plugins), capfd)
        assert f"wait up to 60 s for process {child.pid}, which runs from version {bundles[0].version}" in steps
    assert all(said(plugins / name) == "AA" for name in PREFIXED)


# --- what goes wrong ---
def test_a_version_that_does_not_run_here_is_not_used(plugins: Path, tmp_path: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0])
    broken = make_bundle(tmp_path / "broken", "X")
    (tmp_path / "broken/bin/whereabouts").write_text("#!/no/such/interpreter\n")
    broken = content.bundle(str(tmp_path / "broken"))
    with pytest.raises(IoFailure) as caught:
        install(plugins, broken)
    shown = caught.value.msg[:250]
    assert all(word in shown for word in ("does not run on this host", "whereabouts", "No such file")), shown
    assert all(said(plugins / name) == "AA" for name in PREFIXED)
    install(plugins, bundles[1])  # what is left of it goes
    assert not (plugins / BUNDLE / broken.version).exists()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory whose content anybody can run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_full_disk_and_a_folder_that_cannot_be_written_say_so_and_change_nothing(node: Node, public: Path) -> None:
    folder = public / "small"
    folder.mkdir()
    shim = public / "railcni"
    program(shim, f"#!{COMMAND[0]} -IP\n{COMMAND[3]}\n")

    def refused(*mount: str) -> str:
        node.run(["mount", *mount, str(folder)]).check_returncode()
        done = node.run([shim, "install", "--to", folder])
        assert (done.returncode, done.stdout) == (1, b"")
        assert node.run(["find", folder, "-mindepth", "1"]).stdout == b""
        return done.stderr.decode().partition("\n")[0]

    assert "No space left on device; free space there" in refused("-t", "tmpfs", "-o", "size=200k", "tmpfs")
    # not even the bundle folder fits
    assert "No space left on device; free space there" in refused("-o", "remount,size=4k,nr_inodes=2")
    told = refused("-o", "remount,ro")
    assert "Read-only file system; it is mounted read-only" in told and "with --plugin-dir" in told


def test_files_of_others_under_our_names_are_left_alone(plugins: Path, bundles: Bundles) -> None:
    moved = "railcni-macvlan in the plugin folder is not railcni's: move it away"
    for name, told in ((BUNDLE, "cannot copy version"), ("railcni-macvlan", moved)):
        (plugins / name).write_text("somebody's\n")
        before = listing(plugins)
        with pytest.raises(CniError, match=told):
            install(plugins, bundles[0])
        assert listing(plugins) == before
        (plugins / name).unlink()
    install(plugins, bundles[0])


def test_a_changed_version_is_noticed_and_put_beside_anew(plugins: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0])
    for number in (1, 2):
        (plugins / BUNDLE / "current/lib/a").write_text("Z\n")
        install(plugins, bundles[0])
        assert said(plugins / PREFIXED[0]) == "AA"
        assert (plugins / BUNDLE / "current").readlink().name == f"{bundles[0].version}.{number}"
        assert install(plugins, bundles[0]) == []


# --- the command ---
@pytest.mark.skipif(bool(CHROOT), reason="a checkout's plugins need a host with Python: unset RAILCNI_CHROOT")
def test_a_checkout_installs_plugins_for_its_own_python(
    node: Node, plugins: Path, tmp_path: Path, capfd: Capfd
) -> None:
    state = tmp_path / "state"
    options = ("--to", plugins, "--state-dir", state)
    assert run("install", "--replace", "--dry-run", *options) == 0
    assert "keep the macvlan that is there" in capfd.readouterr().out
    assert not (plugins / BUNDLE).exists()
    done = railcni("install", "--replace", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "from a checkout: the plugins alone" in done.stdout
    version = (plugins / BUNDLE / "current").readlink().name
    assert run("status", "-o", "json", *options) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["folder"], document["version"], document["healthy"]) == (str(plugins), version, True)
    assert document["replaced"] == sorted(PLAIN)

    node.master()
    pod = node.pod()
    config = {"cniVersion": "1.1.0", "name": "n", "type": "macvlan", "master": "ens2f0"}
    config["ipam"] = {"type": "whereabouts", "range": "10.9.0.0/24", "datastore": "file"}  # type: ignore[assignment]
    for name in ("macvlan", "railcni-macvlan"):
        result = node.cni(plugins / name, "ADD", config, netns=pod, path=[plugins]).succeeded()
        assert result["ips"][0]["address"] == "10.9.0.1/24"
        node.cni(plugins / name, "DEL", config, netns=pod, path=[plugins]).succeeded()
    assert node.leftovers() == []
    assert content.is_whole(str(plugins / BUNDLE / version)), "running a plugin has changed what is installed"
    assert run("status", *options) == 0
    table = capfd.readouterr().out
    assert "whole" in table and "\x1b" not in table
    assert re.search(r"store of leases +not asked: `railcni doctor` asks it", table)
    state.mkdir(mode=0o700)
    assert run("uninstall", *options) == 0
    assert "put back: macvlan, host-device, sriov, rdma, whereabouts" in capfd.readouterr().out
    assert said(plugins / "macvlan") == "macvlan of others"


def test_status_in_a_container_tells_attachments_without_a_namespace_from_others(tmp_path: Path, capfd: Capfd) -> None:
    for folder in ("opt/cni/bin", "state"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "run/netns").mkdir(parents=True)
    (tmp_path / "run/netns/there").touch()
    records = Records(str(tmp_path / "state"))
    places = ("/run/netns/there", "/run/netns/gone", "/var/run/netns/there", "/var/run/netns/gone", "/not/mounted", "")
    for name in places:
        records.write(Attachment("net", f"c{len(name)}", "net1"), "ipam", {"netns": name})
    options = ("status", "--root", tmp_path, "--state-dir", "/state", "--to", "/opt/cni/bin")
    run(*options, "-o", "json")
    assert json.loads(capfd.readouterr().out)["attachments"] == {"live": 4, "gone": 2, "pending": 0}
    run(*options)
    said = "0 with a pending release; the next calls on the node end these, `railcni ipam flush` at once"
    assert f"2 whose namespace is gone, {said}" in " ".join(capfd.readouterr().out.split())


def test_status_as_another_user_says_that_the_attachments_are_not_known(
    public: Path, plugins: Path, another_user: AnotherUser, capfd: Capfd
) -> None:
    state = public / "state"
    Records(str(state)).write(Attachment("net", "c1", "net1"), "ipam", {"netns": "/proc/self/ns/net"})
    options = ("--to", public, "--state-dir", state)
    with another_user:
        assert run("status", "-o", "json", *options) == 1
        document = json.loads(capfd.readouterr().out)
        assert run("status", *options) == 1
    assert document["attachments"] is None
    assert any("Permission denied; run as root" in fault for fault in document["faults"])
    table = capfd.readouterr().out
    assert re.search(r"^attachments +not known$", table, re.M)
    assert re.search(r"^fault +.*Permission denied; run as root", table, re.M)


def test_the_command_comes_and_goes_with_the_plugins(
    plugins: Path, work: Path, capfd: Capfd, monkeypatch: Patch
) -> None:
    links = work / "links"
    monkeypatch.setattr("cni.cli.install.COMMANDS", str(links))
    options = ("--to", plugins, "--link-dir", links)
    own = f"{ROOT}/bin/railcni"
    assert run("install", "--to", plugins) == 0
    assert f"the command: {own}\n" in capfd.readouterr().out, "without the folder it is named by its own path"
    links.mkdir()
    assert run("install", *options) == 0
    assert f"the command: {links}/railcni\n" in capfd.readouterr().out
    assert os.readlink(links / "railcni") == own
    assert run("uninstall", *options) == 0
    assert os.listdir(links) == []
    (links / "railcni").write_text("another's")
    assert run("install", *options) == 0 and run("uninstall", *options) == 0
    assert (links / "railcni").read_text() == "another's"


def test_of_the_plain_names_those_are_taken_that_are_asked_for(plugins: Path, capfd: Capfd) -> None:
    with pytest.raises(SystemExit):
        run("install", "--replace", "--plugins", "macvlan,macvlna", "--to", plugins)
    assert '"macvlna": want some of macvlan,' in capfd.readouterr().err
    assert run("install", "--replace", "--plugins", "macvlan,whereabouts,macvlan", "--to", plugins) == 0
    assert "kept, to be put back by uninstall: macvlan, whereabouts\n" in capfd.readouterr().out
    assert {name for name in PLAIN if (plugins / name).is_symlink()} == {"macvlan", "whereabouts"}
    assert run("status", "--to", plugins) == 0
    assert run("uninstall", "--to", plugins) == 0
    assert {said(plugins / name) for name in PLAIN} == {f"{name} of others" for name in PLAIN}


def test_the_plugin_folder_is_found_below_the_root_of_a_host(tmp_path: Path, capfd: Capfd) -> None:
    interpreter = Path(content.checkout(str(ROOT)).interpreter)
    config = tmp_path / "etc/containerd/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\nbin_dirs = ["/opt/other"]')
    (tmp_path / "opt/other").mkdir(parents=True)
    assert run("install", "--root", tmp_path) == 1
    assert "has no" in capfd.readouterr().err
    (tmp_path / interpreter.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / interpreter.relative_to("/")).symlink_to("/bin/python")
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/python").touch(0o755)
    assert run("install", "--root", tmp_path) == 0
    assert "installed in /opt/other" in capfd.readouterr().out
    assert (tmp_path / "opt/other/railcni-macvlan").is_symlink()
    assert run("status", "--root", tmp_path) == 0
    assert "version before       none\n" in capfd.readouterr().out
    assert run("uninstall", "--root", tmp_path) == 0
    assert list((tmp_path / "opt/other").iterdir()) == []
    capfd.readouterr()
    assert run("uninstall", "--root", tmp_path) == 1
    assert "railcni is not installed in /opt/other" in capfd.readouterr().err
    assert run("status", "--root", tmp_path) == 1


def run(*arguments: str | Path) -> int:
    """The command in this process: its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["railcni", *map(str, arguments)])
        patch.setattr(install_command, "COMMANDS", NOWHERE)
        return command.main()


# --- what an uninstall would strand ---

BOOT = {"bootID": "of an earlier boot"}
MACVLAN = {"plugin": "macvlan", "config": '{"type": "macvlan"}'}
LEASED = {"addresses": ["10.9.0.1"]}


OTHERS = "10.9.0.1 would be given to others too"
STRANDED: list[tuple[dict[str, Any] | None, dict[str, Any] | None, bool, str]] = [
    # the records of link and IPAM, whether the namespace is there, and the reason of the refusal
    (MACVLAN, LEASED, True, OTHERS),
    (MACVLAN, LEASED, False, ""),
    (MACVLAN, None, True, ""),
    (None, LEASED, True, OTHERS),
    (MACVLAN, LEASED | {"store": {"kind": "kubernetes"}}, True, ""),
    (MACVLAN, LEASED | {"store": {"kind": "addresslease"}}, True, OTHERS),
    (MACVLAN | {"config": '{"type": "railcni-macvlan"}'}, None, True, "no other plugin detaches"),
    (MACVLAN | {"plugin": "host-device", "config": '{"type": "host-device"}'}, None, False, "without its MTU"),
    (MACVLAN | {"plugin": "sriov", "config": '{"type": "sriov"}'}, None, False, "the VF would keep the settings"),
    (MACVLAN | BOOT, LEASED | BOOT, True, ""),
]


@pytest.mark.parametrize("case", STRANDED)
def test_uninstall_refuses_what_the_plugins_of_others_could_not_take_over(
    plugins: Path, tmp_path: Path, capfd: Capfd, bundles: Bundles, case: Any
) -> None:
    link, ipam, alive, reason = case
    install(plugins, bundles[0], replace=True)
    netns = "/proc/self/ns/net" if alive else "/run/netns/gone"
    for part, record in (("link", link), ("ipam", ipam)):
        if record:
            whose = {"netns": netns, "pod": ["ns", "pod1", ""]}
            Records(str(tmp_path / "state")).write(Attachment("rail", "c1", "net1"), part, {**whose, **record})
    options = ("--to", plugins, "--state-dir", tmp_path / "state")
    installed = listing(plugins)
    assert run("uninstall", "--dry-run", *options) == int(bool(reason))
    foreseen = capfd.readouterr().err
    assert listing(plugins) == installed
    assert run("uninstall", *options) == int(bool(reason))
    if reason:
        told = capfd.readouterr().err
        assert foreseen == told
        assert run("uninstall", "--force", "--dry-run", *options) == 0
        for words in ("an attachment lives that only railcni can detach", "--force", reason):
            assert words in told
        assert all(said(plugins / name) == "AA" for name in NAMES)
        assert run("uninstall", "--force", *options) == 0
    assert said(plugins / "macvlan") == "macvlan of others"
    assert not (plugins / BUNDLE).exists()


def test_what_was_attached_while_uninstall_began_puts_the_names_back(plugins: Path, bundles: Bundles) -> None:
    install(plugins, bundles[0], replace=True)
    before = listing(plugins)
    asked = []

    def refuse(facts: object) -> None:
        asked.append(facts)
        if len(asked) == 2:
            raise TryAgainLater("somebody came")

    with pytest.raises(TryAgainLater):
        change.uninstall(the(plugins), refuse)
    assert listing(plugins) == before
    assert said(plugins / "macvlan") == "AA"
