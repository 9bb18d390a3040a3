"""`python -m cni.dist bundle`, `image`, `release` and `version`: the commands of `make bundle` and so on."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cni.dist import archive, bundle, image, manual, release
from cni.dist.contents import PYTHON, Bundle, CannotBuild


def main() -> int:
    """Build what is asked for, below build/ or --output, and print its place."""
    parser = argparse.ArgumentParser(prog="python -m cni.dist", description=__doc__)
    parser.add_argument("product", choices=["bundle", "image", "release", "version", "manual"])
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="DIR", help="default: build")
    about = "refuse to build with another interpreter than this"
    parser.add_argument("--python", type=Path, metavar="FILE", help=about)
    parser.add_argument(
        "--device-plugin", dest="extra", action="store_const", const="device-plugin", default="", help="with gRPC too"
    )
    about = "of an image or a release: also this bundle, of another architecture; may be repeated"
    parser.add_argument("--with", dest="others", type=Path, action="append", default=[], metavar="BUNDLE", help=about)
    chosen = parser.parse_args()
    try:
        # the bundle gets the interpreter that runs this, with its packages
        if chosen.python and chosen.python.resolve() != PYTHON:
            raise CannotBuild(
                f".venv is of {PYTHON}, not of {chosen.python}: make clean, then make again with PYTHON={chosen.python}"
            )
        with tempfile.TemporaryDirectory() as folder:
            _make(chosen, [release.unpacked(other, Path(folder)) for other in chosen.others])
    except CannotBuild as fault:
        print(f"cannot build: {fault}", file=sys.stderr)
        return 1
    return 0


def _make(chosen: argparse.Namespace, others: Sequence[Path]) -> None:
    if chosen.product == "version":
        for path, text in release.others():
            path.write_text(text)
            print(path)
        return
    if chosen.product == "manual":
        manual.add(Bundle(chosen.output))
        print(chosen.output / "share")
        return
    if chosen.product == "release":
        release.check()  # before what takes minutes
    made = bundle.build(chosen.output, chosen.extra)
    size = sum(p.stat().st_size for p in archive.tree(made) if p.is_file() and not p.is_symlink())
    print(f"{made}  {size / 1e6:.1f} MB")
    files = [made.with_name(f"{made.name}.tar.gz")]
    if chosen.product != "bundle":
        files.append(image.build([made, *others], chosen.output, chosen.extra))
    if chosen.product == "release":
        files = release.build([made, *others], files[1:], chosen.output / "release")
    for file in files:
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
