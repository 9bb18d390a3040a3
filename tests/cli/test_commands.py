"""The table of commands: what `railcni` loads for the command given."""

import ast
import importlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cni import VERSION
from cni.cli import pair
from cni.cli.main import MODULES
from cni.cli.terminal import common, subcommand
from cni.shared.spec.errors import InvalidConfig
from tests.blackbox.command import run, run_any
from tests.node import COMMAND, ROOT

REMEDY = "make a new one by `railcni ipam audit --report FILE`"
TOO_DEEP = "it is nested too deeply, more than 100 levels"
NO_JSON = "Expecting value at line 1, column 1"


@pytest.mark.parametrize("module", sorted({*MODULES.values()} - {""}))
def test_a_module_is_listed_with_the_commands_that_it_has(module: str) -> None:
    commands = subcommand.Parser().add_subparsers()
    importlib.import_module(f"cni.cli.{module}").register(commands)
    assert sorted(commands.choices) == sorted(name for name, of in MODULES.items() if of == module)


@pytest.mark.parametrize(("argv", "needed"), [
    ("--version", set()), ("ipam leases -o json --data-dir EMPTY", set()), ("attachments --state-dir EMPTY", set()),
    ("install --help", set()), ("doctor --help", set()), ("nad lint -o json -", {"pydantic", "yaml"}),
])  # fmt: skip
def test_a_command_loads_no_library_but_what_it_needs(tmp_path: Path, argv: str, needed: set[str]) -> None:
    libraries = {"pydantic", "pyroute2", "rich", "yaml"}
    code = (
        f"import sys; sys.argv = ['railcni', *{argv.replace('EMPTY', str(tmp_path)).split()}]\n"
        "from cni.cli.main import main\n"
        "try: main()\n"
        f"finally: print(*{libraries} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert set(done.stderr.splitlines()[-1].split()) == needed


@pytest.mark.parametrize(("argv", "said"), [
    *(
        (f"{command} --kubeconfig MISSING", '--kubeconfig "MISSING": there is no such file')
        for command in ("pools", "leases", "show 10.0.0.1", "audit", "flush")
    ),
    ("pools --flat-file MISSING", '--flat-file "MISSING": there is no such file'),
    ("pools --data-dir MISSING", '--data-dir "MISSING": there is no such directory'),
    ("reclaim --from-report MISSING", f"report MISSING cannot be read: No such file or directory; {REMEDY}"),
    ("reclaim --from-report /proc/version", f"report /proc/version is not JSON: {NO_JSON}; {REMEDY}"),
    ("reclaim --from-report DEEP", f"report DEEP is not JSON: {TOO_DEEP}; {REMEDY}"),
    ("migrate --from file:EMPTY --to kubernetes:MISSING", "kubernetes:MISSING: there is no such file"),
    ("migrate --from addresslease:MISSING --to file:EMPTY", "addresslease:MISSING: there is no such file"),
    ("migrate --from config:MISSING --to file:EMPTY", "config:MISSING: there is no such file"),
])  # fmt: skip
def test_a_file_that_is_not_there_is_named_with_the_option_that_names_it(tmp_path: Path, argv: str, said: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    deep = tmp_path / "deep"
    deep.write_text("[" * 100_000)
    argv, said = (text.replace("MISSING", "/no/file").replace("DEEP", str(deep)) for text in (argv, said))
    assert run(*argv.replace("EMPTY", str(empty)).split(), code=1) == f"railcni: {said}\n"


@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "caf\udce9.conf"), ("ascii", "café.conf")])
def test_a_name_that_the_locale_cannot_write_is_no_fault_of_railcni(tmp_path: Path, encoding: str, name: str) -> None:
    (tmp_path / name).write_text("{")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.stdout.reconfigure(encoding={encoding!r}, errors='strict')\n"
        "from cni.cli.main import main; sys.exit(main())"
    )
    for stdout in (subprocess.PIPE, tmp_path / "out"):
        with open(tmp_path / "out", "wb") as file:
            argv = [sys.executable, "-IP", "-c", code, "nad", "lint", str(tmp_path)]
            done = subprocess.run(argv, stdout=file if stdout != subprocess.PIPE else stdout, stderr=subprocess.PIPE)
        told = done.stdout or (tmp_path / "out").read_bytes()
        assert (done.returncode, done.stderr) == (1, b"")
        assert b"\\" in told and b"1 error, 0 warnings" in told


@pytest.mark.parametrize(("argv", "like"), [
    ("", "--help"), ("help", "--help"), ("help nad lint", "nad lint --help"), ("help add", "attach --help"),
    ("cluster help doctor", "cluster doctor --help"), ("add --help", "attach --help"),
    ("del --help", "detach --help"), ("ls --help", "attachments --help"), ("", "--help"),
    ("cluster", "cluster --help"), ("ipam", "ipam --help"), ("cluster ipam", "cluster ipam --help"),
    ("nad", "nad --help"), ("version", "--version"), ("version --no-headers -o table", "--version"),
])  # fmt: skip
def test_the_words_of_kubectl_and_of_cni_are_known(argv: str, like: str) -> None:
    assert run_any(*argv.split()) == run_any(*like.split())


@pytest.mark.parametrize(("form", "said"), [("json", '{\n    "client": "V"\n}\n'), ("yaml", "client: V\n")])
def test_the_version_is_data_too(form: str, said: str) -> None:
    assert run_any("version", "-o", form) == said.replace("V", VERSION)


def test_kubectls_plugin_calls_itself_so_and_takes_kubectls_options_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAILCNI_NAME", "kubectl railcni")
    assert run_any("cluster", "status", "--help").startswith("usage: kubectl railcni status ")
    for verb in ("status", "version", "ipam leases"):
        for argv in (["--kubeconfig=/no/file", *verb.split()], [*verb.split(), "--kubeconfig=/no/file"]):
            assert run_any("cluster", *argv, code=1) == 'railcni: --kubeconfig "/no/file": there is no such file\n'
    for argv in (["--agents-in=-", "status"], ["status", "--agents-in=-"], ["test", "x", "--agents-in=-"]):
        assert '--agents-in: "-": start with a letter' in run_any("cluster", *argv, code=2)


@pytest.mark.parametrize(("argv", "said"), [
    ("-o json ipam leases", "railcni: error: -o stands before COMMAND: write it after the command"),
    ("--pod=a/b doctor", "railcni: error: --pod stands before COMMAND: write it after the command"),
    ("ipam -w leases", "railcni ipam: error: -w stands before COMMAND: write it after the command"),
    ("nad --strict lint x", "railcni nad: error: --strict stands before VERB: write it after the verb"),
    ("cluster --context x -o json status", "railcni cluster: error: -o stands before COMMAND: write it after the command"),
    ("cluster --context x statsu", 'railcni cluster: error: argument COMMAND: there is no "statsu": did you mean "status"?'),
    ("foo -o json", "railcni: error: argument COMMAND: invalid choice: 'foo' "),
    ("--out json ipam leases", "railcni: error: --out stands before COMMAND: write it after the command"),
    ("--foo doctor", "railcni: error: there is no use for --foo: leave it out; "),
    ("--strict doctor", "railcni: error: there is no use for --strict: leave it out; "),
    ("-V doctor", "railcni: error: there is no use for -V: leave it out; "),
    ("-h5 doctor", "railcni: error: argument -h/--help: ignored explicit argument '5'"),
    ("--foo", "railcni: error: the following arguments are required: COMMAND, one of attach, "),
    ("cluster --insecure-skip-tls-verify statsu", 'railcni cluster: error: argument COMMAND: there is no "statsu": did you mean "status"?'),
])  # fmt: skip
def test_an_option_before_its_command_is_told_where_to_stand(argv: str, said: str) -> None:
    assert f"\n{said}" in run_any(*argv.split(), code=2)


@pytest.mark.parametrize(("argv", "pod"), [
    ("doctor default/pod-1", True), ("ipam leases team/a", True), ("attachments team/a", True),
    ("doctor --nope", False), ("warm stop now", False), ("ipam pools team/a", False),
])  # fmt: skip
def test_a_word_too_many_may_be_a_pod_where_pods_are_named(argv: str, pod: bool) -> None:
    said = run_any(*argv.split(), code=2)
    assert "error: there is no use for " in said and ("leave it out, or name a pod by --pod; " in said) == pod


@pytest.mark.parametrize(("argv", "meant"), [
    ("cluster status --contxt x", "--context"), ("ipam leases --netwrok=x", "--network"),
    ("install --dryrun", "--dry-run"), ("attach --contaner-id x", "--container-id"),
    ("ipam show --kubecnfig x", "--kubeconfig"),
])  # fmt: skip
def test_of_a_misspelled_option_the_likely_one_is_named(argv: str, meant: str) -> None:
    assert f": did you mean {meant}?" in run_any(*argv.split(), code=2)


@pytest.mark.parametrize(("argv", "code"), [("--help", 0), ("attachments -o json", 0), ("nad lint -", 1)])
def test_a_reader_that_goes_changes_no_exit_code(argv: str, code: int) -> None:
    process = subprocess.Popen([*COMMAND, *argv.split()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdin
    process.stdout.close()
    process.stdin.write('{"cniVersion": "1.0.0"}')
    process.stdin.close()
    assert process.wait(30) == code


def test_a_kubeconfig_that_the_user_may_not_read_is_named_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run("pools", "--kubeconfig", __file__, code=1) == f'railcni: --kubeconfig "{__file__}": it cannot be read\n'


@pytest.mark.parametrize("given", ["", "no JSON", "[]", "{}", '{"ifname": "lo"}'])
def test_the_part_of_railcni_test_in_pods_names_the_command_to_run(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    with pytest.raises(InvalidConfig, match="runs `kubectl railcni test"):
        pair._inside()


def test_no_message_names_a_spelling_that_help_does_not_show() -> None:
    """`--config` and the `--to` of `ipam migrate` are options of their own."""
    old = {known.old for known in common.KNOWN.values()} - {"", "--config"}
    texts = [
        (path.name, node.value)
        for path in (ROOT / "cni").rglob("*.py")
        if path.name not in ("common.py", "migrate.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert old == {"--to"}
    assert [text for text in texts if old.intersection(re.findall(r"--[a-z-]+", text[1]))] == []
