"""railcni install, uninstall: put railcni into the plugin folder of the container runtime, or remove it.

cni/node/installation describes the installed files, and why a call during an install finds one complete version.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from cni.cli import warm
from cni.cli.terminal import common, output, subcommand
from cni.link import plugins
from cni.node.installation import change, content, layout
from cni.node.installation.change import CommandLink, Folder
from cni.node.installation.files import below
from cni.node.installation.layout import BUNDLE, COMMANDS, NAMES, PLAIN, PREFIXED, REPLACED, Installation
from cni.node.installation.options import folder_of, state_of
from cni.node.inventory import attachments as recorded
from cni.node.inventory.places import require_directory
from cni.shared.kernel import node
from cni.shared.kernel.netns_users import has_lost_path
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, IoFailure, TryAgainLater


def register(commands: subcommand.Commands) -> None:
    """Add the commands `install` and `uninstall`."""
    about = "install the plugins in the runtime's plugin folder, or change to this version"
    install = subcommand.add(commands, "install", about, run=_install)
    about = "remove the plugins, and restore the replaced ones"
    uninstall = subcommand.add(commands, "uninstall", about, run=_uninstall)
    common.installation(install)
    about = "also take the plain names of --plugins; the files of these names are kept, and uninstall puts them back"
    install.add_argument("--replace", action="store_true", help=about)
    about = f"with --replace: which plain names; default: {','.join(PLAIN)}"
    install.add_argument("--plugins", type=_plugins, metavar="NAME,NAME", help=about)
    common.installation(uninstall)
    common.add(uninstall, "force", "here: although there are attachments that only railcni can detach")
    for parser in (install, uninstall):
        common.add(parser, "link-dir", "if it exists and has no other file of that name", COMMANDS, made=True)
        common.add(parser, "dry-run")


def _plugins(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))  # a name twice would overwrite the kept foreign file
    if unknown := [name for name in names if name not in PLAIN]:
        raise argparse.ArgumentTypeError(f'"{",".join(unknown)}": want some of {",".join(PLAIN)}')
    return names


# --- the commands ---


def _require(options: argparse.Namespace, *flags: str) -> None:
    """Raise InvalidConfig if a directory that the user named by one of the options `flags` is missing below --root."""
    for flag in set(flags) & options.given:
        shown = getattr(options, flag[2:].replace("-", "_"))
        require_directory(flag, shown, below(options.root, os.path.abspath(shown)))


def _install(options: argparse.Namespace) -> None:
    without = "with --replace: without it all plugins get their railcni-… names alone"
    options.only(options.replace, without, "--plugins")
    _require(options, "--link-dir")
    folder = folder_of(options)
    wanted = content.here()
    if wanted.interpreter and not os.access(below(options.root, wanted.interpreter), os.X_OK):
        remedy = "install the bundle there (make bundle), which brings its own"
        what = f"the host below {options.root} has no {wanted.interpreter}, which a checkout's executables name"
        raise IoFailure(f"{what}: {remedy}")
    replace = (options.plugins or PLAIN) if options.replace else ()
    link = CommandLink(folder, options.root, options.link_dir, wanted)
    folder.foresees = options.dry_run
    with output.progress() as say:
        folder.say = say
        change.install(folder, wanted, replace)
        is_changed = bool(folder.steps)
        link.make()
    if options.dry_run:
        _print_steps(folder)
        _print_state_faults(options)
        return
    if is_changed:
        warm.stop(options.root)  # the workers still run the former version
    found = layout.read(folder.path)
    names, kept = ", ".join(name for name in NAMES if name in found.ours), ", ".join(sorted(found.kept))
    lines = (
        f"railcni {found.current} is installed in {folder.shown}: {names}",
        kept and f"kept, to be put back by uninstall: {kept}",
        f"the command: {link}",
        "" if is_changed else "nothing had to be changed",
        wanted.interpreter and f"from a checkout: the plugins alone, for {wanted.interpreter}",
    )
    output.console().print("\n".join(filter(None, lines)))
    _print_state_faults(options)


def _print_state_faults(options: argparse.Namespace) -> None:
    for fault in layout.state_faults(state_of(options)):
        output.print_fault(f"railcni: {fault}")


def _uninstall(options: argparse.Namespace) -> None:
    _require(options, "--link-dir", "--state-dir")
    folder = folder_of(options)

    def refuse(found: Installation) -> None:
        if not (found.ours or found.kept or os.path.isdir(folder.bundle)):
            why = "name the plugin folder where it is with --plugin-dir"
            raise IoFailure(f"railcni is not installed in {folder.shown}: {why}")
        if not options.force:
            _refuse_held(options, found, folder)

    link = CommandLink(folder, options.root, options.link_dir)
    folder.foresees = options.dry_run
    before = change.uninstall(folder, refuse, lambda: warm.stop(options.root))
    link.remove()
    if options.dry_run:
        _print_steps(folder)
        return
    back = ", ".join(name for name in NAMES if name in before.ours & before.kept)
    # Not by `output`: a bundle that has removed itself has no module left to load.
    print(f"railcni is no longer in {folder.shown}" + (f"; put back: {back}" if back else ""))
    print(f"its records and leases stay in {options.state_dir}")


def _print_steps(folder: Folder) -> None:
    console, what = output.console(), f"in {folder.shown}/ and {folder.shown}/{BUNDLE}/:"
    console.print("\n  ".join([what, *folder.steps]) if folder.steps else f"{folder.shown}: nothing to do")


# --- the attachments that only railcni can detach: while one of them lives, an uninstall is refused ---


def _refuse_held(options: argparse.Namespace, found: Installation, folder: Folder) -> None:
    """Raise TryAgainLater if attachments need railcni for their DEL, or another CniError if the records cannot be read.

    An attachment of an earlier boot needs no DEL: the kernel has forgotten it. On the DEL of an attachment that railcni
    has made, Go's plugins act as follows:

    - macvlan calls its IPAM plugin and deletes the link, whichever program made it. So it can detach an attachment of
      type `macvlan` whose IPAM is not railcni's.
    - host-device restores the name of the device from its alias; MTU, MAC, addresses, routes and state stay lost.
    - sriov finds no cache of its own and succeeds: the VF keeps its VLAN and other settings for the next pod.
    - host-local and whereabouts find no lease in railcni's own stores and succeed: later the address is given to a
      second pod. Go's whereabouts can free a lease in its own pools.
    """
    remaining, boot_id, held = found.kept | found.foreign, node.boot_id(), []
    for attachment in recorded.found(directory=state_of(options)):
        parts = attachment["records"].values()
        members = {key: value for part in parts for key, value in part.items()}
        is_of_boot = any(part.get("bootID", boot_id) == boot_id for part in parts)
        if is_of_boot and (reason := _reason(members, _may_live(attachment, options.root), remaining)):
            whose = attachment["pod"] or f"container {attachment['containerID'][:12]}"
            held.append(f"{attachment['network']} {attachment['ifname']} of {whose}: {reason}")
    if held:
        count = f"{len(held)} attachments live" if len(held) > 1 else "an attachment lives"
        remedy = "Delete those pods (or `railcni detach`) first, or use --force and lose what is listed"
        why = f"railcni stays in {folder.shown}: {count} that only railcni can detach. {remedy}"
        raise TryAgainLater(why, "\n".join(held))


def _reason(record: dict[str, Any], alive: bool, remaining: Collection[str]) -> str:
    """The reason why only railcni can detach the attachment of `record`; "" if one of the `remaining` plugins in the
    folder can detach it, or if nothing is left to detach. `alive`: the namespace of the attachment exists."""
    plugin, network_type = record.get("plugin", ""), ""
    with suppress(TypeError, ValueError, AttributeError):  # the configuration is missing or damaged
        network_type = str(codec.loads(record.get("config", "").encode()).get("type", ""))
    if plugin in plugins.LINK_PLUGINS and (reason := plugins.named(plugin).ONLY_OURS):
        return reason  # even if the namespace is gone: only the record has the device's former name
    if not alive:
        return ""
    if network_type in PREFIXED:
        return f"no other plugin detaches a network of type {network_type}"
    if plugin and plugin not in remaining:
        return f"no other plugin {plugin} is there to detach it"
    store = record.get("store")
    is_shared = isinstance(store, dict) and store.get("kind") == "kubernetes"  # IPPools, which whereabouts uses
    if record.get("addresses") and not ("whereabouts" in remaining and is_shared):
        return f"{', '.join(map(str, record['addresses']))} would be given to others too"
    return ""


# --- railcni status without a network: the installation, and whether it is whole ---


def status(options: argparse.Namespace) -> int:
    """Print the installation in the plugin folder. Return 0 if it is whole, 1 if it has faults or there is none."""
    folder, state = folder_of(options), state_of(options)
    found = layout.read(folder.path)
    faults = layout.faults(folder.path, folder.shown, found, state)
    attached = _attachments(state, options.root, faults)
    running = warm.found(options.root)
    cold = warm.cold(options.root)
    document: dict[str, Any] = {
        "folder": folder.shown,
        "version": found.current or None,
        "previous": found.previous or None,
        "names": {name: _state_of_name(name, found) for name in NAMES},
        "replaced": sorted(found.kept),
        "stateDir": options.state_dir,
        "attachments": attached,
        "warm": [asdict(workers) for workers in running],
        "cold": warm.by_reason(cold),
        "healthy": not faults,
        "faults": faults,
    }
    workers = "; ".join(map(str, running)) or "none at the moment"
    rows = _rows(document, workers, warm.described(cold))
    output.show_table(options.output, document, ("installation", "found"), rows)
    return int(bool(faults))


def _attachments(state: str, root: str, faults: list[str]) -> dict[str, int] | None:
    """Count the attachments: `live`, `gone` (the namespace is gone), `pending` (a release is pending). If this user
    cannot read them, return None and add the reason to `faults`."""
    try:
        found = recorded.found(directory=state)
    except CniError as fault:
        faults.append(fault.msg)
        return None
    pending = [a for a in found if a["pending"]]
    live = sum(1 for a in found if a not in pending and _may_live(a, root))
    return {"live": live, "gone": len(found) - live - len(pending), "pending": len(pending)}


def _may_live(attachment: dict[str, Any], root: str) -> bool:
    """Whether the attachment's namespace may exist. In a container only the host's files are visible: the namespace is
    gone if its path is missing but the directory of the path exists."""
    return bool(attachment["alive"]) if root == "/" else not has_lost_path(attachment["netns"], partial(below, root))


def _state_of_name(name: str, found: Installation) -> str:
    if name in found.ours:
        return f"railcni's; {REPLACED} what was there" if name in found.kept else "railcni's"
    return "another's" if name in found.foreign else "not there"


def _rows(document: dict[str, Any], workers: str, cold: str) -> Iterator[tuple[str, object]]:
    counts, attached = document["attachments"], "not known"
    if counts:
        attached = "{live} live, {gone} whose namespace is gone, {pending} with a pending release".format(**counts)
        if counts["gone"] or counts["pending"]:
            attached += "; the next calls on the node end these, `railcni ipam flush` at once"
    yield "plugin folder", document["folder"]
    yield "version", document["version"] or "none: run `railcni install`"
    yield "version before", document["previous"] or "none"
    yield from document["names"].items()
    yield from (("attachments", attached), ("warm workers", workers), ("cold calls", cold))
    yield "state", document["stateDir"]
    yield "store of leases", "not asked: `railcni doctor` asks it"
    yield from (("fault", fault) for fault in document["faults"])
    if document["healthy"]:
        yield "health", "whole"
