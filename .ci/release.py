"""All that is published of a version, in build/release: bundles, their bills of materials, images, the manifests and the
chart that name the images by digest, the manifest of krew, the changes, the provenance, checksums, and their signature.

Usage, in the project's directory after `make`: python .ci/release.py BASE_PYTHON [--with BUNDLE]... [--key FILE]
`python .ci/release.py version` writes the version of pyproject.toml into the files of PLACES; `python .ci/release.py where` prints
the version, the registry and the address of the source, for .ci/publish.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]

# The other files that name the version of pyproject.toml, each with the text right before it.
PLACES = {
    "cni/__init__.py": 'VERSION = "',
    "conf/charts/railcni/Chart.yaml": "ersion: ",  # version and appVersion
    "conf/kubernetes/kustomization.yaml": "newTag: ",
    "conf/kubernetes/device-plugin/kustomization.yaml": "newTag: ",
    "conf/kubernetes/dra/kustomization.yaml": "newTag: ",
    "README.md": "railcni[-:]",
    "docs/*.md": "railcni(?:-chart|-device-plugin)?[-:]",
    "conf/charts/railcni/README.md": "railcni-chart-",
}
SUMS = "SHA256SUMS"
URLS = ("Source", "Documentation", "Downloads")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Linux and as Go, and so krew, call them
_EXTRA = "-device-plugin.tar.gz"  # the end of the name of a bundle for the device plugin's image alone
NAMESPACE = "file"  # of the signature, ssh-keygen(1)


class CannotBuild(Exception):
    """A release cannot be made; the message names the cause and the remedy."""


def described() -> dict[str, Any]:
    """What pyproject.toml says of the project: `version`, `urls` and the like.

    If its Source is on GitHub, the other addresses follow from it, also that of the registry.
    """
    found: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    urls = found.get("urls", {})
    if slug := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", urls.get("Source", "")):
        found["urls"] = {
            "Documentation": f"{slug[0]}/blob/v{found['version']}/README.md",
            "Downloads": f"{slug[0]}/releases/download",
            "Registry": f"https://ghcr.io/{slug[1].lower()}",
            **urls,
        }
    return found


def others() -> Iterator[tuple[Path, str]]:
    """Each file that has another version than pyproject.toml, and its text with that one."""
    version = described()["version"]
    for pattern, before in PLACES.items():
        for path in sorted(PROJECT.glob(pattern)):
            text = path.read_text()
            new = re.sub(rf"({before})\d+\.\d+\.\d+(?:-[a-z]+\.\d+)?(?!\.\d|\w)", rf"\g<1>{version}", text)
            if new != text:
                yield path, new


def check() -> str:
    """What CHANGELOG.md says of the version.

    Raises CannotBuild when it says nothing, when a file has another version, or when an address is missing.
    """
    urls = described().get("urls", {})
    if unnamed := [name for name in URLS if "://" not in urls.get(name, "")]:
        raise CannotBuild(
            f"pyproject.toml does not say where you publish: write below [project.urls] {', '.join(unnamed)}, such as"
            f' {unnamed[0]} = "https://HOST/PATH". The image and the manifest of krew name them. Of a Source on GitHub,'
            " https://github.com/OWNER/NAME, the others are known"
        )
    if stale := [str(path.relative_to(PROJECT)) for path, _ in others()]:
        raise CannotBuild(f"{', '.join(stale)}: another version than pyproject.toml: run `make version`, and commit")
    version, text = described()["version"], (PROJECT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[?{re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found or not found[1].strip():
        raise CannotBuild(f"CHANGELOG.md has no section `## {version}`: write there what users have of this version")
    return f"{found[1].strip()}\n"


def build(archives: Sequence[Path], images: Sequence[Path], target: Path, key: Path | None = None) -> list[Path]:
    """Gather the release of the bundles' `archives` and of `images` in the directory `target`, which is made again.

    Return its files. `key` signs the checksums. Raises CannotBuild.
    """
    changes, project = check(), described()
    version = project["version"]
    shutil.rmtree(target, ignore_errors=True)
    (target / "work").mkdir(parents=True)
    for archive in archives:
        plugin = _plugin(archive, target)
        shutil.copy(archive, target)
        name = plugin.name.removeprefix("kubectl-").removesuffix(".tar.gz")
        shutil.move(target / "work/railcni/bill-of-materials.spdx.json", target / f"{name}.spdx.json")
    digests = {}
    for image in images:
        shutil.copy(image, target)
        digests[image.name.partition(f"-{version}")[0]] = _digest(image)
    _configuration(digests, target, version, all(image.name.endswith(f"-{version}.oci.tar") for image in images))
    (target / "railcni.yaml").write_text(yaml.safe_dump(krew(project, target), sort_keys=False))
    (target / f"CHANGES-{version}.md").write_text(changes)
    shutil.rmtree(target / "work")
    (target / "provenance.json").write_text(json.dumps(provenance(project, target), indent=1) + "\n")
    sums = [f"{_sha256(file)}  {file.name}\n" for file in sorted(target.iterdir())]
    (target / SUMS).write_text("".join(sums))
    if key:
        argv = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(target / SUMS)]
        if subprocess.run(argv).returncode:
            raise CannotBuild(f"ssh-keygen has not signed {SUMS} with {key}")
    return sorted(target.iterdir())


def _plugin(archive: Path, target: Path) -> Path:
    """What krew installs of a bundle: all but its links, which krew refuses."""
    folder = target / "work/railcni"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    argv = ["tar", "-xzf", str(archive), "-C", str(folder), "--strip-components=1"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(
            f"{archive} is no bundle: want the .tar.gz that `make bundle` made ({done.stderr.strip()[:200]})"
        )
    for path in folder.rglob("*"):
        if path.is_symlink():
            path.unlink()
    return _pack(folder, target / f"kubectl-{archive.name}")


def _pack(folder: Path, file: Path, *options: str) -> Path:
    """Write a reproducible archive of the folder."""
    named = [
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -9n",
    ]
    subprocess.run(["tar", *named, *options, "-cf", str(file), "-C", str(folder.parent), folder.name], check=True)
    return file


def _digest(image: Path) -> str:
    """The digest of the image in an archive: a registry has it after `skopeo copy --all`."""
    with tarfile.open(image) as tar, tar.extractfile("index.json") as file:  # type: ignore[union-attr]
        (manifest,) = json.load(file)["manifests"]
    return str(manifest["digest"])


def _configuration(digests: dict[str, str], target: Path, version: str, every: bool) -> None:
    """Archives of conf/kubernetes and of the chart, which name the images by `digests`, and by the registry if it is known.

    `every`: the images have every architecture, so the pods select none.
    """
    registry = described()["urls"].get("Registry", "").removeprefix("https://")
    for source in ("kubernetes", "charts/railcni"):
        shutil.copytree(PROJECT / "conf" / source, target / "work/conf" / source)  # of a link, that to which it leads
    for name, digest in digests.items():
        for option in ("device-plugin/", "dra/") if name.endswith("device-plugin") else ("",):
            file = target / f"work/conf/kubernetes/{option}kustomization.yaml"
            text = file.read_text().replace(f"newTag: {version}", f"digest: {digest}")
            file.write_text(text.replace("set-your-registry.invalid", registry or "set-your-registry.invalid"))
    file = target / "work/conf/charts/railcni/values.yaml"
    values = file.read_text().replace('imageRegistry: ""', f'imageRegistry: "{registry}"')
    for name, indent in (("railcni", "  "), ("railcni-device-plugin", "    ")):
        if name in digests:
            values = re.sub(rf'^{indent}digest: ""', f'{indent}digest: "{digests[name]}"', values, flags=re.M)
    file.write_text(values.replace("io/arch: amd64", "io/arch: null") if every else values)
    for path in target.glob("work/conf/kubernetes/**/daemonset.yaml" if every else "-"):
        path.write_text(re.sub(r"^ *kubernetes\.io/arch: .*\n", "", path.read_text(), flags=re.M))
    _pack(target / "work/conf/kubernetes", target / f"railcni-kubernetes-{version}.tar.gz")
    chart = target / "work/conf/charts/railcni"
    _pack(chart, target / f"railcni-chart-{version}.tgz", "--exclude=.helmignore")


def krew(project: dict[str, Any], target: Path) -> dict[str, Any]:
    """The manifest of the plugin of kubectl, for the archives in `target`; the file is to be called railcni.yaml.

    https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
    """
    tag = f"v{project['version']}"
    platforms = []
    for archive in sorted(target.glob("kubectl-*.tar.gz")):
        machine = archive.name.rpartition("-")[2].removesuffix(".tar.gz")
        platform = {
            "selector": {"matchLabels": {"os": "linux", "arch": ARCHITECTURES[machine]}},
            "uri": f"{project['urls']['Downloads']}/{tag}/{archive.name}",
            "sha256": _sha256(archive),
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


def provenance(project: dict[str, Any], target: Path) -> dict[str, Any]:
    """The source of the files in `target`: an in-toto statement, https://slsa.dev/spec/v1.0/provenance."""
    argv = ["git", "-C", str(PROJECT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    revision = subprocess.run(argv, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    source: dict[str, Any] = {"uri": project["urls"]["Source"]}
    if revision:
        source["digest"] = {"gitCommit": revision}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f.name, "digest": {"sha256": _sha256(f)}} for f in sorted(target.iterdir())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{project['urls']['Source']}#make-release",
                "externalParameters": {"version": project["version"]},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": f"{project['urls']['Source']}#make"}},
        },
    }


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def main() -> int:
    """Build the bundles and images of a release and gather it, or give every file the version."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("python", metavar="BASE_PYTHON|version|where")
    about = "the .tar.gz of a bundle of another architecture, also of the device plugin's; may be repeated"
    parser.add_argument("--with", dest="others", type=Path, action="append", default=[], metavar="BUNDLE", help=about)
    about = "an SSH key that signs the checksums; the public one if an agent has the key"
    parser.add_argument("--key", type=Path, metavar="FILE", help=about)
    chosen = parser.parse_args()
    try:
        if chosen.python == "version":
            for path, text in others():
                path.write_text(text)
                print(path)
            return 0
        if chosen.python == "where":
            urls = described().get("urls", {})
            print(described()["version"], urls.get("Registry", "-").removeprefix("https://"), urls.get("Source", "-"))
            return 0
        check()  # before what takes minutes
        made = _make(chosen.python, chosen.others)
        files = build(*made, PROJECT / "build/release", chosen.key)
    except CannotBuild as fault:
        print(f"cannot build: {fault}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    if not chosen.key:
        print(f'{SUMS} is not signed: make release ARGS="--key FILE", an SSH key', file=sys.stderr)
    return 0


def _make(python: str, given: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The archives of the bundles, and the images of railcni and of its device plugin."""
    output = PROJECT / "build/made"
    shutil.rmtree(output, ignore_errors=True)
    for option in ([], ["--device-plugin"]):
        fitting = [bundle for bundle in given if bundle.name.endswith(_EXTRA) == bool(option)]
        named = [word for bundle in fitting for word in ("--with", str(bundle))]
        argv = ["sh", ".ci/image", python, *option, *named, "--output", str(output)]
        if subprocess.run(argv, cwd=PROJECT).returncode:
            raise CannotBuild("no image, and so no release")
    bundles = [*output.glob("*.tar.gz"), *given]
    return [one for one in bundles if not one.name.endswith(_EXTRA)], sorted(output.glob("*.oci.tar"))


if __name__ == "__main__":
    sys.exit(main())
