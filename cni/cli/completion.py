"""railcni completion: prints the completion script for a shell. The scripts are files of a bundle; in a source checkout
they are generated. The module also has the command `railcni version`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from cni import VERSION
from cni.cli.terminal import output, subcommand
from cni.node.runtime import ROOT
from cni.shared.spec.errors import IoFailure

SHELLS = {"bash": "bash-completion/completions/railcni", "zsh": "zsh/site-functions/_railcni"}  # below /usr/share
SHELLS["fish"] = "fish/vendor_completions.d/railcni.fish"


def register(commands: subcommand.Commands) -> None:
    """Add the commands `completion` and `version`."""
    subcommand.add(commands, "version", "print the version of this command", run=_version, shows=True)
    about = "print the completion of this command for a shell"
    more = ", such as for `source <(railcni completion bash)`."
    parser = subcommand.add(commands, "completion", about, more, run=_run)
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=f"one of {', '.join(SHELLS)}")


def _version(options: argparse.Namespace) -> None:
    output.show(options.output, {"client": VERSION}, lambda: print(f"railcni {VERSION}"))


def _run(options: argparse.Namespace) -> None:
    maker, share = f"{ROOT}/.ci/manual.py", f"{ROOT}/share"
    with tempfile.TemporaryDirectory() as folder:
        if os.path.exists(maker):
            share = folder
            made = subprocess.run([sys.executable, maker, folder], capture_output=True, text=True)
            if made.returncode:
                why = made.stderr.strip().rpartition("\n")[2]
                remedy = f"run `make` in {ROOT}, which installs what it needs"
                raise IoFailure(f"the completion cannot be made: {why}: {remedy}")
        path = f"{share}/{SHELLS[options.shell]}"
        try:
            with open(path, encoding="utf-8") as file:
                script = file.read()
        except OSError as fault:
            raise IoFailure(f"{path}: {fault.strerror}: unpack the bundle again") from None
    sys.stdout.write(script)
