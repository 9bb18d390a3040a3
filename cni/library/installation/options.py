"""The options that name an installation, and the folders that they mean: of install, uninstall and agent."""

from __future__ import annotations

import argparse
import os

from cni.library.installation.below import below
from cni.library.installation.change import Folder
from cni.library.installation.runtimes import plugin_folder
from cni.shared.records import STATE


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which installation is meant."""
    parser.add_argument(
        "--to",
        default="",
        metavar="DIR",
        help="the plugin folder; default: the one that containerd or CRI-O is configured for",
    )
    parser.add_argument(
        "--root", default="/", metavar="DIR", help="where the host's file system is mounted, in a container: all paths"
        " are taken below it"
    )  # fmt: skip
    parser.add_argument("--state-dir", default=STATE, metavar="DIR", help=f"where records are kept; default: {STATE}")


def folder_of(options: argparse.Namespace) -> Folder:
    """The plugin folder that the options mean. InvalidConfig says why there is none."""
    shown = plugin_folder(options.root, options.to)
    return Folder(below(options.root, shown), shown)


def state_of(options: argparse.Namespace) -> str:
    """The state directory's real path."""
    return below(options.root, os.path.abspath(options.state_dir))
