"""All that is published of a version: bundles, their bills of materials, images, the chart, what krew needs, and checksums.

The version is pyproject.toml's; PLACES are the files that have it too, which `python -m cni.dist version` writes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from cni.dist import archive, bill, image
from cni.dist.contents import PROJECT, CannotBuild, described

# The other files that name the version of pyproject.toml, each with the text right before it.
PLACES = {
    "cni/__init__.py": 'VERSION = "',
    "conf/charts/railcni/Chart.yaml": "ersion: ",  # version and appVersion
    "conf/kubernetes/kustomization.yaml": "newTag: ",
    "conf/kubernetes/device-plugin/kustomization.yaml": "newTag: ",
    "README.md": "railcni[-:]",
    "docs/*.md": "railcni(?:-chart|-device-plugin)?[-:]",
    "conf/charts/railcni/README.md": "railcni-chart-",
}
CHART = "conf/charts/railcni"
SUMS = "SHA256SUMS"
URLS = ("Source", "Documentation", "Downloads")


def others(project: Path = PROJECT) -> Iterator[tuple[Path, str]]:
    """Each file that has another version than pyproject.toml, and its text with that one."""
    version = described(project)["version"]
    for pattern, before in PLACES.items():
        for path in sorted(project.glob(pattern)):
            text = path.read_text()
            new = re.sub(rf"({before})\d+\.\d+\.\d+(?:-[a-z]+\.\d+)?(?!\.\d|\w)", rf"\g<1>{version}", text)
            if new != text:
                yield path, new


def check() -> str:
    """What CHANGELOG.md says of the version. CannotBuild: nothing, a file has another version, or an address is missing."""
    urls = described(PROJECT).get("urls", {})
    if unnamed := [name for name in URLS if "://" not in urls.get(name, "")]:
        raise CannotBuild(
            f"pyproject.toml does not say where you publish: write below [project.urls] {', '.join(unnamed)}, such as"
            f' {unnamed[0]} = "https://HOST/PATH". The image and the manifest of krew name them'
        )
    if stale := [str(path.relative_to(PROJECT)) for path, _ in others(PROJECT)]:
        raise CannotBuild(f"{', '.join(stale)}: another version than pyproject.toml: run `make version`, and commit")
    return section(PROJECT / "CHANGELOG.md", described(PROJECT)["version"])


def build(bundles: Sequence[Path], images: Sequence[Path], target: Path) -> list[Path]:
    """Gather the release of `bundles` and `images` in the directory `target`, which is made again; return its files.

    CannotBuild: check() refuses, or a bundle's .tar.gz is not beside it.
    """
    changes, project = check(), described(PROJECT)
    for bundle in bundles:
        if not bundle.with_name(f"{bundle.name}.tar.gz").exists():
            raise CannotBuild(f"{bundle}.tar.gz is missing: give --with the .tar.gz that `make bundle` made there")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    packed = {}
    for bundle in bundles:
        shutil.copy(bundle.with_name(f"{bundle.name}.tar.gz"), target)
        plugin = target / f"kubectl-{bundle.name}.tar.gz"  # krew refuses an archive that has links
        plugin.write_bytes(archive.compress(archive.pack(bundle, "railcni", links=False)))
        packed[plugin.name] = plugin.read_bytes()
        shutil.copy(bundle / bill.FILE, target / f"{bundle.name}.spdx.json")
    for file in images:
        shutil.copy(file, target)
    files = [p for p in sorted((PROJECT / CHART).rglob("*")) if p.is_file() and p.name != ".helmignore"]
    # of a link that to which it leads, for a chart stands alone
    chart = {f"railcni/{p.relative_to(PROJECT / CHART)}": p.read_bytes() for p in files}
    (target / f"railcni-chart-{project['version']}.tgz").write_bytes(archive.compress(archive.of_bytes(chart)))
    (target / "railcni.yaml").write_text(yaml.safe_dump(krew(project, packed), sort_keys=False))
    (target / f"CHANGES-{project['version']}.md").write_text(changes)
    made = sorted(target.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in made]
    (target / SUMS).write_text("".join(lines))
    return [*made, target / SUMS]


def section(changelog: Path, version: str) -> str:
    """What CHANGELOG.md says of the version, below its heading `## VERSION`."""
    text = changelog.read_text() if changelog.exists() else ""
    found = re.search(rf"^## \[?{re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found or not found[1].strip():
        raise CannotBuild(
            f"{changelog.name} has no section `## {version}`: write there what users have of this version"
        )
    return f"{found[1].strip()}\n"


def krew(project: dict[str, Any], archives: dict[str, bytes]) -> dict[str, Any]:
    """The manifest of the plugin of kubectl, with its `archives` by name; the file is to be called railcni.yaml.

    https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
    """
    tag = f"v{project['version']}"
    platforms = []
    for name, data in archives.items():
        machine = name.rpartition("-")[2].removesuffix(".tar.gz")
        platform = {
            "selector": {"matchLabels": {"os": "linux", "arch": image.ARCHITECTURES[machine]}},
            "uri": f"{project['urls']['Downloads']}/{tag}/{name}",
            "sha256": hashlib.sha256(data).hexdigest(),
            "bin": "railcni/bin/kubectl-railcni",
        }
        platforms.append(platform)
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "railcni"},
        "spec": {
            "version": tag,
            "homepage": project["urls"]["Source"],
            "shortDescription": "Look at RDMA secondary networks and their addresses",
            "description": "The state of railcni on all nodes, the pod of each address, leases\n"
            "without a pod, and the RDMA faults of a node or pod.\n",
            "platforms": platforms,
        },
    }


def unpacked(bundle: Path, folder: Path) -> Path:
    """The directory of a bundle that is given as such, or as a .tar.gz, which is unpacked into `folder`."""
    if bundle.is_dir():
        return bundle
    try:
        shutil.unpack_archive(bundle, folder)
    except (OSError, shutil.ReadError) as fault:
        raise CannotBuild(
            f"{bundle} is no bundle: want a directory or .tar.gz that `make bundle` made ({fault})"
        ) from None
    shutil.copy(bundle, folder)
    return folder / bundle.name.removesuffix(".tar.gz")
