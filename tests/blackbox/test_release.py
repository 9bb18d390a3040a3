"""`make release` and `make version`: what is published fits together, and one file has the version."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni import VERSION
from cni.dist import release
from cni.dist.contents import PROJECT, CannotBuild
from tests.blackbox.test_dist import bundle_of
from tests.tools import needs, run

Manifest = dict[str, Any]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the checkout, with a changelog."""
    top = tmp_path / "project"
    for name in ("conf", "docs"):
        shutil.copytree(PROJECT / name, top / name, symlinks=True)
    (top / "cni").mkdir()
    for name in ("cni/__init__.py", "pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, top / name)
    (top / "CHANGELOG.md").write_text(
        f"# Changes\n\n## 9.9.9\n\nlater\n\n## {VERSION} (2026)\n\n- new\n\n## 0.0.1\n\nold\n"
    )
    urls = "".join(f'{name} = "https://git.example.com/{name.lower()}"\n' for name in release.URLS)
    with (top / "pyproject.toml").open("a") as file:
        file.write(f"\n[project.urls]\n{urls}")
    monkeypatch.setattr(release, "PROJECT", top)
    return top


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    made = []
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        bundle = bundle_of(tmp_path / f"railcni-{VERSION}-linux-{machine}", number)
        (bundle / "bill-of-materials.spdx.json").write_text(f"{{}} {machine}")
        bundle.with_name(f"{bundle.name}.tar.gz").write_bytes(machine.encode())
        made.append(bundle)
    return made


def build(project: Path, bundles: list[Path]) -> Path:
    return release.build(bundles, [], project / "release")[-1].parent


def test_every_file_has_the_version_of_the_project() -> None:
    assert [str(path) for path, _ in release.others()] == [], "run `make version`"


def test_one_change_of_the_version_reaches_every_file(project: Path) -> None:
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace(f'version = "{VERSION}"', 'version = "7.8.9"', 1))
    changed = dict(release.others(project))
    names = {str(path.relative_to(project)) for path in changed}
    assert {name for name in release.PLACES if "*" not in name} <= names
    for path, text in changed.items():
        path.write_text(text)
    assert list(release.others(project)) == []
    assert yaml.safe_load((project / "conf/charts/railcni/Chart.yaml").read_text())["appVersion"] == "7.8.9"
    assert 'VERSION = "7.8.9"' in (project / "cni/__init__.py").read_text()
    assert "railcni-7.8.9-amd64.oci.tar" in (project / "docs/install.md").read_text()
    assert "railcni-chart-7.8.9.tgz" in (project / "docs/helm.md").read_text()


def test_a_release_has_all_parts_and_their_checksums(project: Path, bundles: list[Path]) -> None:
    folder = build(project, bundles)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "SHA256SUMS",
        f"CHANGES-{VERSION}.md",
        "railcni.yaml",
        f"railcni-chart-{VERSION}.tgz",
        *(f"railcni-{VERSION}-linux-{m}.{end}" for m in ("x86_64", "aarch64") for end in ("tar.gz", "spdx.json")),
        *(f"kubectl-railcni-{VERSION}-linux-{m}.tar.gz" for m in ("x86_64", "aarch64")),
    }
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        names.remove(name)
    assert names == {"SHA256SUMS"}
    assert (folder / f"CHANGES-{VERSION}.md").read_text() == "- new\n"


# What krew demands of a manifest (its developer guide: plugin-manifest.md, naming-guide.md), by a change that breaks it.
BREAKS: dict[str, Callable[[Manifest], object]] = {
    "apiVersion": lambda m: m.update(apiVersion="krew.googlecontainertools.github.com/v1"),
    "kind": lambda m: m.update(kind="Plugins"),
    "the name is the file's": lambda m: m["metadata"].update(name="railcni.krew"),
    "a name of small letters, digits and dashes, without kubectl": lambda m: m["metadata"].update(
        name="kubectl-railcni"
    ),
    "a version of three numbers behind a v": lambda m: m["spec"].update(version="0.1.0"),
    "a short description": lambda m: m["spec"].update(shortDescription=""),
    "a short description of one line and without a stop": lambda m: m["spec"].update(shortDescription="It\nlooks."),
    "a description": lambda m: m["spec"].pop("description"),
    "a homepage": lambda m: m["spec"].update(homepage="railcni"),
    "a platform": lambda m: m["spec"].update(platforms=[]),
    "platforms that differ": lambda m: m["spec"]["platforms"].append(m["spec"]["platforms"][0]),
    "a selector": lambda m: m["spec"]["platforms"][0].pop("selector"),
    "a selector by os and arch alone": lambda m: m["spec"]["platforms"][0]["selector"]["matchLabels"].update(
        libc="gnu"
    ),
    "a platform that krew is made for": lambda m: m["spec"]["platforms"][0]["selector"]["matchLabels"].update(
        arch="x86_64"
    ),
    "an archive by https, .tar.gz or .zip": lambda m: m["spec"]["platforms"][0].update(uri="https://h/railcni.tar"),
    "a sha256 of 64 small hexadecimal digits": lambda m: m["spec"]["platforms"][0].update(sha256="A" * 64),
    "a bin that is not above the archive": lambda m: m["spec"]["platforms"][0].update(bin="../railcni"),
    "no list of files that is empty": lambda m: m["spec"]["platforms"][0].update(files=[]),
}
PLATFORMS = {("linux", arch) for arch in ("386", "amd64", "arm", "arm64", "ppc64le")}


def is_accepted(manifest: Manifest, file: str) -> bool:
    """Whether a manifest of this file name is as krew demands."""
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    chosen = [platform.get("selector", {}).get("matchLabels", {}) for platform in spec["platforms"]]
    pairs = [(labels.get("os"), labels.get("arch")) for labels in chosen]
    return all(
        (
            manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2",
            manifest["kind"] == "Plugin",
            file == f"{name}.yaml" and re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) and not name.startswith("kube"),
            re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", spec["version"]),
            re.fullmatch(r"[^\n]{1,60}(?<!\.)", spec["shortDescription"]),
            spec.get("description", "").strip(),
            spec.get("homepage", "").startswith("https://"),
            pairs and len(set(pairs)) == len(pairs) and PLATFORMS.issuperset(pairs),
            all(labels.keys() == {"os", "arch"} for labels in chosen),
            all(re.fullmatch(r"https://.*\.(tar\.gz|zip)", platform["uri"]) for platform in spec["platforms"]),
            all(re.fullmatch(r"[0-9a-f]{64}", platform["sha256"]) for platform in spec["platforms"]),
            all(not {"..", "/"} & set(Path(platform["bin"]).parts) for platform in spec["platforms"]),
            all(platform.get("files", True) for platform in spec["platforms"]),
        )
    )


def test_krew_accepts_the_manifest(project: Path, bundles: list[Path]) -> None:
    manifest = yaml.safe_load((build(project, bundles) / "railcni.yaml").read_text())
    assert is_accepted(manifest, "railcni.yaml")
    assert not is_accepted(manifest, "railcni.krew.yaml")


@pytest.mark.parametrize("rule", BREAKS)
def test_a_manifest_that_breaks_a_rule_of_krew_would_be_noticed(project: Path, bundles: list[Path], rule: str) -> None:
    manifest = yaml.safe_load((build(project, bundles) / "railcni.yaml").read_text())
    BREAKS[rule](manifest)
    assert not is_accepted(manifest, "railcni.yaml")


def test_krew_gets_an_archive_of_each_bundle_with_the_plugin_a_licence_and_no_link(
    project: Path, bundles: list[Path]
) -> None:
    """krew unpacks files and folders, and refuses an archive that has anything else."""
    for bundle in bundles:
        (bundle / "LICENSE").write_text("terms")
        (bundle / "bin/kubectl-railcni").write_text("#!/bin/sh")
        (bundle / "bin/kubectl-railcni").chmod(0o755)
        (bundle / "bin/railcni-macvlan").symlink_to("macvlan")
    folder = build(project, bundles)
    manifest = yaml.safe_load((folder / "railcni.yaml").read_text())
    for bundle, platform in zip(bundles, manifest["spec"]["platforms"], strict=True):
        machine = bundle.name.rpartition("-")[2]
        assert platform["selector"]["matchLabels"]["arch"] == {"x86_64": "amd64", "aarch64": "arm64"}[machine]
        file = folder / platform["uri"].rpartition("/")[2]
        assert f"/v{VERSION}/" in platform["uri"]
        assert platform["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        with tarfile.open(file) as tar:
            assert all(member.isfile() or member.isdir() for member in tar)
            assert tar.getmember(platform["bin"]).mode & 0o111
            assert "railcni/LICENSE" in tar.getnames()


@needs("helm", "`.ci/helm` puts it into build/tools")
def test_helm_takes_the_chart_of_the_release_and_renders_what_the_checkout_does(
    project: Path, bundles: list[Path], tmp_path: Path
) -> None:
    file = build(project, bundles) / f"railcni-chart-{VERSION}.tgz"
    with tarfile.open(file) as tar:
        assert all(member.isfile() for member in tar)  # a link would lead out of the chart
    of_file, of_checkout = (
        run(
            "helm",
            "template",
            "x",
            str(chart),
            "--namespace=railcni",
            "--set=metrics.dashboard=true,image.repository=r/x",
        )
        for chart in (file, PROJECT / release.CHART)
    )
    assert of_file.returncode == 0, of_file.stderr
    assert of_file.stdout == of_checkout.stdout


def test_a_release_without_its_changes_or_of_two_versions_is_refused(project: Path, bundles: list[Path]) -> None:
    (project / "CHANGELOG.md").write_text("# Changes\n\n## 9.9.9\n\nlater\n")
    with pytest.raises(CannotBuild, match=f"no section `## {VERSION}`"):
        build(project, bundles)
    file = project / "conf/charts/railcni/Chart.yaml"
    file.write_text(file.read_text().replace(VERSION, "0.0.1"))
    with pytest.raises(CannotBuild, match=r"Chart.yaml: another version.*make version"):
        build(project, bundles)


@pytest.mark.parametrize("missing", release.URLS)
def test_a_release_that_says_not_where_it_is_published_is_refused(
    project: Path, bundles: list[Path], missing: str
) -> None:
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace(f"\n{missing} = ", "\nOther = "))
    with pytest.raises(CannotBuild, match=rf"\[project.urls\] {missing}, such as {missing} ="):
        build(project, bundles)


def test_a_bundle_without_its_archive_is_refused(project: Path, bundles: list[Path]) -> None:
    bundles[1].with_name(f"{bundles[1].name}.tar.gz").unlink()
    with pytest.raises(CannotBuild, match=r"aarch64.tar.gz is missing: give --with the .tar.gz"):
        build(project, bundles)


def test_a_bundle_in_an_archive_is_unpacked_and_what_is_none_is_refused(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "railcni-x", 183)
    shutil.make_archive(str(bundle), "gztar", tmp_path, bundle.name)
    found = release.unpacked(tmp_path / "railcni-x.tar.gz", tmp_path / "new")
    assert (found / "VERSION").read_text() == f"{VERSION}\n"
    assert found.with_name("railcni-x.tar.gz").exists()
    (tmp_path / "none.tar.gz").write_text("x")
    with pytest.raises(CannotBuild, match="is no bundle"):
        release.unpacked(tmp_path / "none.tar.gz", tmp_path / "new")
