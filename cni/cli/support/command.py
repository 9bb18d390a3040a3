"""railcni support-bundle: the state of a node for remote support, in one file without secrets."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from datetime import UTC, datetime

from cni import VERSION
from cni.cli.support import archive, secrets
from cni.cli.support.archive import Part
from cni.cli.support.parts import Places, gather
from cni.cli.terminal import output, subcommand
from cni.cli.terminal.progress import Progress
from cni.library.inventory.places import NET_DIRECTORY
from cni.shared.kernel.node import host_name
from cni.shared.records import STATE

_ABOUT = "reports, configurations, records, leases and logs of this node in one .tar.gz, secrets removed"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `support-bundle`."""
    parser = subcommand.add(
        commands,
        "support-bundle",
        _ABOUT,
        ". Its index.json names the files that cannot be read. Passwords, tokens, private keys and the environment of exec"
        " helpers are removed wherever they stand; look through it all the same before it leaves your hands.",
    )
    parser.add_argument(
        "-f",
        "--file",
        default="",
        metavar="FILE",
        help="default: railcni-support-NODE-TIME.tar.gz, here; mode 0600",
    )
    for flag, default in (("conf", NET_DIRECTORY), ("state", STATE), ("cache", Places.results)):
        subcommand.option(parser, f"--{flag}-dir", default)
    parser.add_argument("--config", default="", metavar="FLATFILE", help="default: the installed flat file")
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a further log; can be repeated")
    subcommand.option(parser, "--cni-path", ":".join(Places.plugins), "the plugin folders", "DIR:DIR")
    output.add_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    places = Places(
        networks=options.conf_dir,
        state=options.state_dir,
        results=options.cache_dir,
        plugins=tuple(d for d in options.cni_path.split(":") if d),
        logs=tuple(options.log),
        flat=os.path.abspath(options.config) if options.config else "",
    )
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.file or f"railcni-support-{host_name()}-{now}.tar.gz"
    with Progress() as progress:
        parts = cleaned(gather(places, progress.say))
    output.write_file(
        "support bundle", path, archive.pack(parts, {"node": host_name(), "created": now, "railcni": VERSION})
    )
    missing = [part for part in parts if part.fault]
    for part in missing:
        output.print_fault(f"railcni: not in the bundle: {part.name}: {part.fault}")
    count, size = len(parts) - len(missing), os.path.getsize(path)
    document = {"file": path, "files": count, "bytes": size, "missing": [part.name for part in missing]}
    text = f"{path}: {count} files, {size} bytes; its index is {archive.TOP}/{archive.INDEX}"
    output.show(options.output, document, lambda: print(text))
    return 0


def cleaned(parts: list[Part]) -> list[Part]:
    """`parts` without their secrets: a secret of one is removed from all."""
    known: set[str] = set()
    for part in parts:
        known |= secrets.collect(part.text)
    return [
        replace(
            part, **{name: secrets.scrub(getattr(part, name), known) for name in ("text", "fault", "about", "name")}
        )
        for part in parts
    ]
