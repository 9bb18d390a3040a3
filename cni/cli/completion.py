"""railcni completion: prints a shell's completion file, from the bundle or from `make manual`. Also railcni version."""

from __future__ import annotations

import argparse
import sys

from cni import VERSION
from cni.cli.terminal import output, subcommand
from cni.node.runtime import ROOT
from cni.shared.spec.errors import InvalidConfig

# The file of each shell's completion, below /usr/share.
SHELLS = {
    "bash": "bash-completion/completions/railcni",
    "zsh": "zsh/site-functions/_railcni",
    "fish": "fish/vendor_completions.d/railcni.fish",
}


def register(commands: subcommand.Commands) -> None:
    """Add the commands `completion` and `version`."""
    subcommand.add(commands, "version", "print the version of this command", run=_version, shows=True)
    about = "print the completion of this command for a shell"
    parser = subcommand.add(
        commands, "completion", about, ", such as for `source <(railcni completion bash)`.", run=_run
    )
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=f"one of {', '.join(SHELLS)}")


def _version(options: argparse.Namespace) -> int:
    output.show(options.output, {"client": VERSION}, lambda: print(f"railcni {VERSION}"))
    return 0


def _run(options: argparse.Namespace) -> int:
    for share in (f"{ROOT}/share", f"{ROOT}/build/share"):
        try:
            with open(f"{share}/{SHELLS[options.shell]}", encoding="utf-8") as file:
                sys.stdout.write(file.read())
            return 0
        except FileNotFoundError:
            pass
    raise InvalidConfig(f"no completion in {ROOT}: `make manual` in the checkout writes it")
