"""`python -m cni.dist bundle` and `python -m cni.dist image`: what `make bundle` and `make image` run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cni.dist import archive, bundle, image
from cni.dist.contents import Interpreter
from cni.dist.errors import CannotBuild


def main() -> int:
    """Build what is named, below build/ or --output, and say where it lies."""
    parser = argparse.ArgumentParser(prog="python -m cni.dist", description=__doc__)
    parser.add_argument("what", choices=["bundle", "image"])
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="DIR", help="default: build")
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="refuse to build with another interpreter than this"
    )
    chosen = parser.parse_args()
    try:
        _compare(chosen.python)
        made = bundle.build(chosen.output)
        size = sum(p.stat().st_size for p in archive.tree(made) if p.is_file() and not p.is_symlink())
        print(f"{made}  {size / 1e6:.1f} MB")
        print(f"{made}.tar.gz  {Path(f'{made}.tar.gz').stat().st_size / 1e6:.1f} MB")
        if chosen.what == "image":
            file = image.build(made, chosen.output)
            print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    except CannotBuild as fault:
        print(f"cannot build: {fault}", file=sys.stderr)
        return 1
    return 0


def _compare(wanted: Path | None) -> None:
    """The bundle gets the interpreter that runs this, with its packages: they must be those that were asked for."""
    runs = Interpreter().executable
    if wanted and wanted.resolve() != runs:
        raise CannotBuild(f".venv is of {runs}, not of {wanted}: make clean, then make again with PYTHON={wanted}")


if __name__ == "__main__":
    sys.exit(main())
