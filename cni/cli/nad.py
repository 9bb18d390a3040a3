"""railcni nad: checks the networks in files before they are used, renders NADs, and prints the JSON Schema."""

from __future__ import annotations

import argparse
import sys
from typing import IO

from cni.cli.terminal import common, output, subcommand
from cni.documents import NET_DIRECTORY
from cni.documents.diagnostic import ERROR, WIDTH, Diagnostic
from cni.lint import nvidia, schema
from cni.lint.file import lint
from cni.node.installation.layout import PLAIN
from cni.node.inventory.places import is_missing
from cni.shared.spec.errors import InvalidConfig

_MARGIN = 4 + len("12345 | ……")  # columns beside the text of a line


def register(commands: subcommand.Commands) -> None:
    """Add the command `nad` and its subcommands."""
    about = "check networks in files, print their JSON Schema, and render NADs from operators' resources"
    verbs = subcommand.add_group(commands, "nad", about)
    about = "find the faults of a NAD, conflist, conf or plan of rails: line, column, key and remedy"
    more = ". Exit code 0: no error; 1: errors."
    lint = subcommand.add(verbs, "lint", about, more, run=_lint, shows=True)
    about = f"a file (YAML or JSON, with several documents), a directory such as {NET_DIRECTORY}, or - for stdin"
    lint.add_argument("files", nargs="+", metavar="FILE", help=about)
    lint.add_argument("--strict", action="store_true", help="exit code 1 for warnings too")
    common.add(lint, "flat-file", "a copy of the nodes'; default: assume one that names a store", "")
    about = "print the NADs that operators make of MacvlanNetwork, HostDeviceNetwork, IPoIBNetwork and SriovNetwork"
    more = ", without labels, revision and owner. If a resource has a fault, nothing is printed."
    render = subcommand.add(verbs, "render", about, more, run=_render, forms=("yaml", "json"))
    about = "resources of NVIDIA's operator or the SR-IOV operator, or - for stdin"
    render.add_argument("files", nargs="+", metavar="FILE", help=about)
    about = "the prefix of a SriovNetwork's resource, with NVIDIA's operator nvidia.com"
    subcommand.option(render, "--resource-prefix", "openshift.io", about, "PREFIX")
    about = "print the JSON Schema of a conflist, of a plugin's configuration, or of the ipam block of whereabouts"
    schema = subcommand.add(verbs, "schema", about, ", made from the plugins' own tables.", run=_schema)
    names, about = ("conflist", *PLAIN), f"conflist (default), {', '.join(PLAIN)}"
    schema.add_argument("name", nargs="?", default="conflist", metavar="NAME", choices=names, help=about)


def _schema(options: argparse.Namespace) -> None:
    output.print_data(schema.schema(options.name))


def _render(options: argparse.Namespace) -> int:
    nads, findings = nvidia.render_files(options.files, options.resource_prefix)
    print_findings(findings, sys.stderr)
    if any(f.severity == ERROR for f in findings):
        return 1
    output.print_objects(nads, options.output)
    return 0


def _lint(options: argparse.Namespace) -> int:
    if options.flat_file and is_missing(options.flat_file):
        raise InvalidConfig(f'--flat-file "{options.flat_file}": there is no such file')
    findings = lint(options.files, options.flat_file)
    errors = sum(f.severity == ERROR for f in findings)
    warnings = len(findings) - errors
    if options.output == "table":
        print_findings(findings)
        count = f"{output.counted(errors, 'error')}, {output.counted(warnings, 'warning')}" if findings else "no faults"
        output.console().print(count)
    else:
        document = {"findings": [f.document() for f in findings], "errors": errors, "warnings": warnings}
        output.print_data(document, options.output)
    return int(errors > 0 or (options.strict and bool(findings)))


def print_findings(findings: list[Diagnostic], stream: IO[str] | None = None) -> None:
    """Print each finding with its source line and the remedy."""
    out = output.console(stream)
    for finding in findings:
        severe = finding.severity == "error"
        line = output.styled(f"{finding.place}: ", "bold")
        line.append(finding.severity, style="bold red" if severe else "bold yellow")
        about = f" (network {finding.network})" if finding.network else ""
        line.append(f": {finding.key + ': ' if finding.key else ''}{finding.message}{about}", style="not bold")
        out.print(line)
        for text in finding.snippet(min(WIDTH, out.width - _MARGIN)):
            out.print(output.styled("    " + text, "dim"))
        if finding.fix:
            out.print(output.styled(f"    fix: {finding.fix}"))
