"""The options of every verb: what would change nothing, what is malformed and what is not there is refused, by one message each."""

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni.cli import main as command
from cni.cli.terminal import subcommand
from tests.blackbox.command import run_any as run
from tests.each import quick
from tests.node import COMMAND

# Where an option has no effect: a verb, and of each call the words behind it, in which DIR is an empty directory and FILE an
# empty flat file, and the option that is refused.
WITHOUT_EFFECT = """
gc NETWORK: NETNS | NETNS; -i net1 | -i; --container-id c1 | --container-id; --args A=1 | --args
gc NETWORK: --capability-args {} | --capability-args; --device-id 0 | --device-id
status NETWORK: NETNS | NETNS; --cache-dir DIR | --cache-dir; -i net1 | -i; --plugin-dir DIR | --plugin-dir
status NETWORK: --root DIR | --root; --state-dir DIR | --state-dir
status: -i net1 | -i; --conf-dir DIR | --conf-dir; --cni-path DIR | --cni-path
doctor: --nfd - -o json | -o/--output; --nfd - -o table | -o/--output; --nfd - -v | -v/--verbose
doctor: --pod a/b -v | -v/--verbose; --pod a/b --nfd | --nfd; --peer 10.0.0.1 | --peer
rdma: --ibdev2netdev -o json | -o/--output; --ibdev2netdev -w | -w; --env a/b -w | -w
rdma: --env a/b -A | -A/--all-namespaces
rails render FILE: -o table --devices railcni | --devices
ipam pools: --data-dir DIR -n kube-system | -n/--namespace; --flat-file FILE -n kube-system | -n/--namespace
ipam pools: --flat-file ETCD --kubeconfig FILE | --kubeconfig
ipam leases: --data-dir DIR --kubeconfig FILE | --kubeconfig
ipam show 10.0.0.1: --data-dir DIR --kubeconfig FILE | --kubeconfig
ipam audit: --data-dir DIR --kubeconfig FILE | --kubeconfig; --data-dir DIR -n x | -n/--namespace
ipam flush: --drop --yes --dry-run | --dry-run; --data-dir DIR | --data-dir
ipam migrate: --from file:DIR --to etcd:h:1 --range 10.0.0.0/8 | --range
ipam migrate: --from file:DIR --to etcd:h:1 --network-name n | --network-name
ipam migrate: --from file:DIR --to etcd:h:1 --network n | --network; --from etcd:h:1 --to etcd:h:2 --node n | --node
ipam migrate: --from file:DIR --to etcd:h:1 --node n | --node
ipam migrate: --from kubernetes:FILE --to addresslease:FILE --remove-source | --remove-source
ipam migrate: --from addresslease:FILE --to kubernetes:FILE --remove-source | --remove-source
cluster: --agents-in x ipam leases | --agents-in
cluster ipam leases: --data-dir DIR | --data-dir; --flat-file FILE | --flat-file
cluster doctor a/b: -v | -v/--verbose
cluster status: -v | -v
install: --plugins macvlan | --plugins
device-plugin: -o json | -o/--output; -w | -w; --show --log-level info | --log-level; --show --cdi | --cdi
device-plugin: --show --listen 127.0.0.1:1 | --listen; --show --kubelet-dir DIR | --kubelet-dir
device-plugin: --show --pod-resources s | --pod-resources
agent: --kubeconfig FILE --service-account DIR | --service-account
agent: --kubeconfig FILE --plugin-account a/b | --plugin-account; --kubeconfig FILE --api-server u | --api-server
agent: --kubeconfig FILE --datastore kubernetes | --datastore; --once --listen 127.0.0.1:1 | --listen
agent: --once --every 1 | --every
"""
MALFORMED = """
attachments: --pod a/b/c; --pod /b; --pod a/; --pod=; --pod a%b; --container-id a/b/c; --container-id a%b
attachments: --container-id=; --network a/b; --network=
ipam leases: --pod a/b/c; --container-id a/b/c; --network a/b; --node a/b; --node=; --ifname a/b
ipam leases: --ifname averylonginterface; --pool 10.0.0.0/99; --pool a/b; --pool=; -n a/b
ipam show: a/b/c; 10.0.0.1/99; 10.0.0.1/x; 10.0.0.256
ipam migrate: --from foo --to etcd:h:1; --from file: --to etcd:h:1; --from etcd:h:1 --to foo
ipam migrate: --from etcd:h:1 --to host-local:DIR; --from etcd:h:x --to file:DIR; --from file:DIR --to file:DIR
ipam migrate: --from host-local:DIR --to etcd:h:1; --from host-local:DIR --to etcd:h:1 --range 10.0.0.0/99
ipam migrate: --from host-local:DIR --to etcd:h:1 --range 10.0.0.0/8 --network a/b
ipam migrate: --from host-local:DIR --to etcd:h:1 --range 10.0.0.0/8 --node a/b
attach n ns: --container-id a/b; -i a/b; --args x; --capability-args []
detach n: --container-id a/b/c;
check n:
doctor: --pod a/b --peer 10.0.0.256
cluster: --agents-in a/b status
cluster doctor: a/b/c
cluster ipam show: x/y/z
agent: --plugin-account a/b/c; --namespace a/b; --grace -1; --listen 9108
reclaim:
"""
# The directories of all other options are required in one place: below it is asked whether each option is of those.
MISSING_DIRECTORY = """
attachments: --state-dir
ipam pools: --data-dir
ipam migrate: --to etcd:h:1 --from file:; --to etcd:h:1 --range 10.0.0.0/8 --from host-local:
install: --plugin-dir DIR --link-dir
uninstall: --plugin-dir DIR --link-dir; --plugin-dir DIR --state-dir
"""
MADE = {  # the directories that need not be there: who makes them
    "--cache-dir": {"attach": "itself"},
    "--conf-dir": {"agent": "itself"},
    "--kubelet-dir": {"device-plugin": "kubelet"},
    "--kubelet-root": {"dra run": "kubelet"},
    "--link-dir": {"install": "is checked below --root", "uninstall": "is checked below --root"},
    "--state-dir": dict.fromkeys(("install", "agent", "status", "ipam in-use"), "the plugins")
    | {"uninstall": "is checked below --root"},
    "--plugin-dir": dict.fromkeys(("install", "uninstall", "agent", "status"), "is checked below --root"),
}


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "file").write_text("{}")
    (tmp_path / "etcd").write_text('{"etcd_host": "h:1"}')
    return {name: str(tmp_path / name.lower()) for name in ("FILE", "ETCD")} | {"DIR": str(tmp_path / "empty")}


def called(line: str, words: dict[str, str]) -> list[str]:
    for word, path in words.items():
        line = line.replace(word, path)
    return line.split()


def calls(table: str) -> list[str]:
    """The calls of a table whose lines have a verb, and what follows it in each call."""
    parts = [line.partition(":") for line in table.strip().splitlines()]
    return [f"{verb} {rest.strip()}".strip() for verb, _, rests in parts for rest in rests.split(";")]


@pytest.mark.parametrize("line", calls(WITHOUT_EFFECT))
def test_an_option_that_would_change_nothing_is_refused_by_its_name(words: dict[str, str], line: str) -> None:
    argv, _, option = line.partition(" | ")
    said = run(*called(argv, words), code=2).splitlines()[-1]
    assert f"error: {option} has an effect only " in said or f"error: there is no use for {option}" in said
    assert ": leave it out" in said


@pytest.mark.parametrize("line", calls(MALFORMED))
def test_what_is_malformed_is_a_wrong_call_and_no_empty_answer(words: dict[str, str], line: str) -> None:
    assert ": error: " in run(*called(line, words), code=2).splitlines()[-1]


@pytest.mark.parametrize("line", calls(MISSING_DIRECTORY))
def test_a_directory_that_is_given_and_not_there_is_named_with_its_option(words: dict[str, str], line: str) -> None:
    *before, last = called(line, words)
    option, last = (before.pop(), f"{last}/no/where") if last.endswith(":") else (last, "/no/where")
    assert run(*before, option, last, code=1) == f'railcni: {option} "{last}": there is no such directory\n'


def test_of_a_path_one_directory_is_enough(words: dict[str, str], tmp_path: Path) -> None:
    """As with PATH: `--cni-path "$CNI_PATH:/opt/cni/bin"` is called also where the variable is not set."""
    (tmp_path / "x.conf").write_text('{"cniVersion": "1.0.0", "name": "x", "type": "none"}')
    for path in (f":{words['DIR']}::", f"/no/where:{words['DIR']}"):
        assert "no such directory" not in run("status", str(tmp_path / "x.conf"), "--cni-path", path, code=1)
    for path in ("", "/no/where:/nor/here"):
        said = run("status", str(tmp_path / "x.conf"), "--cni-path", path, code=1)
        assert said == f'railcni: --cni-path "{path}": there is no such directory\n'


def test_a_default_directory_need_not_be_there(words: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cni.cli.attachments.STATE", "/no/where")
    assert run("attachments") == "no attachment in /no/where\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


def test_every_directory_of_every_verb_is_checked_or_is_made_later() -> None:
    for parser in _parsers(command._parser()):
        assert isinstance(parser, subcommand.Parser)
        verb = parser.prog.removeprefix("railcni ")
        for action in parser._actions:
            if action.metavar in ("DIR", "DIR:DIR") and not verb.startswith("cluster"):
                option = action.option_strings[-1]
                is_checked = isinstance(action, subcommand.ExistingDirectory)
                assert is_checked != (verb in MADE.get(option, {})), f"{verb} {option}"


@pytest.mark.parametrize(
    "verb",
    quick(
        ["ipam pools --data-dir .", "status", "support-bundle", "nad lint x", "install --dry-run"],
        *("ipam pools --data-dir .", "status"),
    ),
)
def test_a_working_directory_that_was_removed_is_said_or_not_needed(tmp_path: Path, verb: str) -> None:
    gone = tmp_path / "gone"
    argv = ["sh", "-c", f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "$@"', "sh", *COMMAND, *verb.split()]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "a fault of railcni itself" not in done.stderr
    if verb in ("support-bundle", "ipam pools --data-dir ."):
        assert done.stderr.startswith("railcni: the working directory has been removed: change to another one")


def test_every_command_and_verb_describes_itself() -> None:
    _, *commands = _parsers(command._parser())
    assert [parser.prog for parser in commands if not parser.description] == []


def test_the_help_of_every_verb_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wide = [
        line for parser in _parsers(command._parser()) for line in parser.format_help().splitlines() if len(line) > 80
    ]
    assert wide == []
