"""`make release` and `make version`: what is published fits together, and one file has the version."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni import VERSION
from tests.node import ROOT
from tests.tools import needs, run, script

release = script("release")
PROJECT = ROOT
DIGESTS = {"railcni": f"sha256:{'a' * 64}", "railcni-device-plugin": f"sha256:{'b' * 64}"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the checkout, with a changelog."""
    top = tmp_path / "project"
    for name in ("conf", "docs"):
        shutil.copytree(PROJECT / name, top / name, symlinks=True)
    (top / "cni").mkdir()
    for name in ("cni/__init__.py", "pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, top / name)
    changes = f"# Changes\n\n## 9.9.9\n\nlater\n\n## {VERSION} (2026)\n\n- new\n\n## 0.0.1\n\nold\n"
    (top / "CHANGELOG.md").write_text(changes)
    urls = "".join(f'{name} = "https://git.example.com/{name.lower()}"\n' for name in release.URLS)
    with (top / "pyproject.toml").open("a") as file:
        file.write(f"\n[project.urls]\n{urls}")
    monkeypatch.setattr(release, "PROJECT", top)
    return top


def bundle_of(folder: Path, machine: int, version: str = VERSION) -> Path:
    """A bundle with what an image and a release need: a program for `machine`, as elf(5) numbers them, and the version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "VERSION").write_text(f"{version}\n")
    for name in ("railcni", "kubectl-railcni"):
        (folder / "bin" / name).write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + bytes([machine, 0]))
        (folder / "bin" / name).chmod(0o755)
    (folder / "bin/railcni-macvlan").symlink_to("macvlan")
    (folder / "LICENSE").write_text("terms")
    (folder / "bill-of-materials.spdx.json").write_text(f"{{}} {machine}")
    return folder


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    """The archives of two bundles."""
    made = []
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        bundle = bundle_of(tmp_path / f"railcni-{VERSION}-linux-{machine}", number)
        made.append(Path(shutil.make_archive(str(bundle), "gztar", tmp_path, bundle.name)))
    return made


def image_of(folder: Path, name: str) -> Path:
    """An archive that names the digest of its image, as an OCI layout does."""
    index = json.dumps({"manifests": [{"digest": DIGESTS[name]}]}).encode()
    file = folder / f"{name}-{VERSION}.oci.tar"
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo("index.json")
        member.size = len(index)
        tar.addfile(member, io.BytesIO(index))
    return file


def build(project: Path, bundles: list[Path], key: Path | None = None) -> Path:
    images = [image_of(project, name) for name in DIGESTS]
    target: Path = project / "release"
    release.build(bundles, images, target, key)
    return target


def test_every_file_has_the_version_of_the_project() -> None:
    assert [str(path) for path, _ in release.others()] == [], "run `make version`"


def test_one_change_of_the_version_reaches_every_file(project: Path) -> None:
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace(f'version = "{VERSION}"', 'version = "7.8.9"', 1))
    changed = dict(release.others())
    names = {str(path.relative_to(project)) for path in changed}
    assert {name for name in release.PLACES if "*" not in name} <= names
    for path, text in changed.items():
        path.write_text(text)
    assert list(release.others()) == []
    assert yaml.safe_load((project / "conf/charts/railcni/Chart.yaml").read_text())["appVersion"] == "7.8.9"
    assert 'VERSION = "7.8.9"' in (project / "cni/__init__.py").read_text()
    assert "railcni-7.8.9-amd64.oci.tar" in (project / "docs/install.md").read_text()
    assert "railcni-chart-7.8.9.tgz" in (project / "docs/helm.md").read_text()


def test_a_release_has_all_parts_and_their_checksums(project: Path, bundles: list[Path]) -> None:
    folder = build(project, bundles)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "SHA256SUMS", f"CHANGES-{VERSION}.md", "railcni.yaml", "provenance.json", f"railcni-chart-{VERSION}.tgz",
        f"railcni-kubernetes-{VERSION}.tar.gz",
        *(f"{name}-{VERSION}.oci.tar" for name in DIGESTS),
        *(f"railcni-{VERSION}-linux-{m}.{end}" for m in ("x86_64", "aarch64") for end in ("tar.gz", "spdx.json")),
        *(f"kubectl-railcni-{VERSION}-linux-{m}.tar.gz" for m in ("x86_64", "aarch64")),
    }  # fmt: skip
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        names.remove(name)
    assert (names, (folder / f"CHANGES-{VERSION}.md").read_text()) == ({"SHA256SUMS"}, "- new\n")
    subjects = json.loads((folder / "provenance.json").read_text())["subject"]
    assert {s["name"] for s in subjects} == {p.name for p in folder.iterdir()} - {"SHA256SUMS", "provenance.json"}
    for subject in subjects:
        assert subject["digest"] == {"sha256": hashlib.sha256((folder / subject["name"]).read_bytes()).hexdigest()}


def test_a_release_is_the_same_bytes_each_time(project: Path, bundles: list[Path]) -> None:
    sums = (build(project, bundles) / "SHA256SUMS").read_text()
    assert (build(project, bundles) / "SHA256SUMS").read_text() == sums


def test_its_manifests_and_its_chart_name_the_images_by_digest(project: Path, bundles: list[Path]) -> None:
    folder = build(project, bundles)
    with tarfile.open(folder / f"railcni-kubernetes-{VERSION}.tar.gz") as tar:
        of_devices = (("device-plugin/", "railcni-device-plugin"), ("dra/", "railcni-device-plugin"))
        for path, name in (("", "railcni"), *of_devices):
            told = yaml.safe_load(tar.extractfile(f"kubernetes/{path}kustomization.yaml"))  # type: ignore[arg-type]
            (image,) = told["images"]
            assert image == {"name": name, "newName": f"set-your-registry.invalid/{name}", "digest": DIGESTS[name]}
    with tarfile.open(folder / f"railcni-chart-{VERSION}.tgz") as tar:
        values = yaml.safe_load(tar.extractfile("railcni/values.yaml"))  # type: ignore[arg-type]
    assert values["nodeSelector"] == {"kubernetes.io/arch": None}  # the images have both
    assert values["global"]["imageRegistry"] == ""
    assert values["image"]["digest"] == DIGESTS["railcni"]
    assert values["devicePlugin"]["image"]["digest"] == DIGESTS["railcni-device-plugin"]


def test_a_source_on_github_names_the_registry_in_manifests_and_chart(project: Path, bundles: list[Path]) -> None:
    file = project / "pyproject.toml"
    text = file.read_text().rpartition("[project.urls]")[0]
    file.write_text(f'{text}[project.urls]\nSource = "https://github.com/Team/rail.cni"\n')
    folder = build(project, bundles)
    with tarfile.open(folder / f"railcni-kubernetes-{VERSION}.tar.gz") as tar:
        for path in ("", "device-plugin/", "dra/"):
            (image,) = yaml.safe_load(tar.extractfile(f"kubernetes/{path}kustomization.yaml"))["images"]  # type: ignore[arg-type]
            assert image["newName"] == f"ghcr.io/team/rail.cni/{image['name']}"
        for path in ("", "dra/"):
            daemonset = yaml.safe_load(tar.extractfile(f"kubernetes/{path}daemonset.yaml"))  # type: ignore[arg-type]
            assert daemonset["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    with tarfile.open(folder / f"railcni-chart-{VERSION}.tgz") as tar:
        values = yaml.safe_load(tar.extractfile("railcni/values.yaml"))  # type: ignore[arg-type]
    assert values["global"]["imageRegistry"] == "ghcr.io/team/rail.cni"
    manifest = yaml.safe_load((folder / "railcni.yaml").read_text())
    assert manifest["spec"]["platforms"][0]["uri"].startswith("https://github.com/Team/rail.cni/releases/download/v")


@needs("ssh-keygen", "apt-get install openssh-client")
def test_a_user_verifies_the_signature_as_the_page_says(project: Path, bundles: list[Path], tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True)
    folder = build(project, bundles, key)
    shutil.copy(f"{key}.pub", folder / "railcni-release.pub")
    page = (PROJECT / "docs/install.md").read_text()
    (commands,) = (block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "-Y verify" in block)

    def verified() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-ec", commands], cwd=folder, capture_output=True, text=True)

    done = verified()
    assert done.returncode == 0, done.stderr
    assert 'Good "file" signature for release' in done.stdout
    assert f"railcni-chart-{VERSION}.tgz: OK" in done.stdout
    (folder / "railcni.yaml").write_text("changed")
    assert verified().returncode != 0
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text(sums.replace("0", "1"))
    assert "incorrect signature" in verified().stderr
    with pytest.raises(release.CannotBuild, match="has not signed SHA256SUMS with"):
        build(project, bundles, tmp_path / "no key")


def test_krew_accepts_the_manifest_and_an_archive_of_each_bundle(project: Path, bundles: list[Path]) -> None:
    """krew unpacks files and folders, and refuses an archive that has anything else."""
    folder = build(project, bundles)
    manifest = yaml.safe_load((folder / "railcni.yaml").read_text())
    spec = manifest["spec"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert (manifest["metadata"], spec["version"]) == (
        {"name": "railcni"},
        f"v{VERSION}",
    )  # the name is the file's, too
    assert re.fullmatch(r"[^\n]{1,60}(?<!\.)", spec["shortDescription"]) and spec["description"].strip()
    assert spec["homepage"].startswith("https://")
    architectures = [platform["selector"]["matchLabels"] for platform in spec["platforms"]]
    assert architectures == [{"os": "linux", "arch": arch} for arch in ("arm64", "amd64")]
    for bundle, platform in zip(sorted(bundles), spec["platforms"], strict=True):
        file = folder / f"kubectl-{bundle.name}"
        assert re.fullmatch(rf"https://.*/v{VERSION}/{file.name}", platform["uri"])
        assert platform["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        with tarfile.open(file) as tar:
            assert all(member.isfile() or member.isdir() for member in tar)
            assert tar.getmember(platform["bin"]).mode & 0o111
            assert "railcni/LICENSE" in tar.getnames()


@needs("helm", "`.ci/helm` puts it into build/tools")
def test_helm_renders_the_chart_of_the_release_as_that_of_the_checkout(project: Path, bundles: list[Path]) -> None:
    file = build(project, bundles) / f"railcni-chart-{VERSION}.tgz"
    with tarfile.open(file) as tar:
        assert all(member.isfile() or member.isdir() for member in tar)  # a link would lead out of the chart
    values = "--set=metrics.dashboard=true,image.repository=r/x,nodeSelector=null,image.digest=" + DIGESTS["railcni"]
    charts = (file, PROJECT / "conf/charts/railcni")
    of_file, of_checkout = (run("helm", "template", "x", str(chart), "--namespace=railcni", values) for chart in charts)
    assert (of_file.returncode, of_file.stdout) == (0, of_checkout.stdout), of_file.stderr


def test_a_release_without_its_changes_or_of_two_versions_is_refused(project: Path, bundles: list[Path]) -> None:
    (project / "CHANGELOG.md").write_text("# Changes\n\n## 9.9.9\n\nlater\n")
    with pytest.raises(release.CannotBuild, match=f"no section `## {VERSION}`"):
        build(project, bundles)
    file = project / "conf/charts/railcni/Chart.yaml"
    file.write_text(file.read_text().replace(VERSION, "0.0.1"))
    with pytest.raises(release.CannotBuild, match=r"Chart.yaml: another version.*make version"):
        build(project, bundles)


@pytest.mark.parametrize("missing", release.URLS)
def test_a_release_that_says_not_where_it_is_is_refused(project: Path, bundles: list[Path], missing: str) -> None:
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace(f"\n{missing} = ", "\nOther = "))
    with pytest.raises(release.CannotBuild, match=rf"\[project.urls\] {missing}, such as {missing} ="):
        build(project, bundles)


def test_what_is_no_archive_of_a_bundle_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "none.tar.gz").write_text("x")
    for name in ("none.tar.gz", "missing.tar.gz"):
        with pytest.raises(release.CannotBuild, match=f"{name} is no bundle: want the .tar.gz"):
            build(project, [tmp_path / name])


# --- the image ---

IMAGE = ["sh", ".ci/image", "python3", "--only"]


def image(bundles: list[Path], output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    named = [word for bundle in bundles for word in ("--with", str(bundle))]
    return subprocess.run([*IMAGE, *named, *options, "--output", output], cwd=ROOT, capture_output=True, text=True)


builders = shutil.which("podman"), shutil.which("buildah")
needs_builder = pytest.mark.skipif(not any(builders), reason="needs buildah: apt-get install buildah")


@pytest.mark.long
@needs_builder
def test_an_image_of_both_architectures_holds_the_bundles_each_time_alike(bundles: list[Path], tmp_path: Path) -> None:
    done = [image(bundles, tmp_path / name) for name in ("one", "two")]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    files = [tmp_path / name / f"railcni-{VERSION}.oci.tar" for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with tarfile.open(files[0]) as tar:
        blobs = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]

    def blob(descriptor: dict[str, Any]) -> bytes:
        return blobs["blobs/" + descriptor["digest"].replace(":", "/")]

    (named,) = json.loads(blobs["index.json"])["manifests"]
    assert named["annotations"]["org.opencontainers.image.ref.name"] == f"localhost/railcni:{VERSION}"
    manifests = json.loads(blob(named))["manifests"]
    assert [m["platform"]["architecture"] for m in manifests] == ["amd64", "arm64"]
    for described, number in zip(manifests, (62, 183), strict=True):
        manifest = json.loads(blob(described))
        config = json.loads(blob(manifest["config"]))
        assert config["architecture"] == described["platform"]["architecture"]
        assert config["config"]["Entrypoint"] == ["/opt/railcni/bin/railcni"]
        labels = {key.rpartition(".")[2] for key in config["config"]["Labels"]}
        assert {"title", "version", "description", "licenses"} <= labels
        (layer,) = manifest["layers"]
        with tarfile.open(fileobj=io.BytesIO(blob(layer))) as tar:
            program = tar.getmember("opt/railcni/bin/railcni")
            assert (program.mode & 0o777, program.uid, program.mtime) == (0o755, 0, 0)
            assert tar.extractfile(program).read()[18] == number  # type: ignore[union-attr]


@pytest.mark.long
@needs_builder
def test_an_image_has_the_layers_of_the_base_that_is_named(bundles: list[Path], tmp_path: Path) -> None:
    done = image(bundles[:1], tmp_path / "base")
    assert done.returncode == 0, done.stderr
    base = f"oci-archive:{tmp_path}/base/railcni-{VERSION}-amd64.oci.tar"
    done = image(bundles[:1], tmp_path / "on it", "--base", base)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / f"on it/railcni-{VERSION}-amd64.oci.tar") as tar:
        blobs = [tar.extractfile(m).read() for m in tar if m.isfile()]  # type: ignore[union-attr]
    found = [json.loads(blob) for blob in blobs if blob.startswith(b"{")]
    assert [len(blob["layers"]) for blob in found if "layers" in blob] == [2]


UNFIT: dict[str, tuple[tuple[int, ...], str]] = {  # machines and version of the bundles
    "is for amd64 too: give one bundle of each architecture": ((62, 62), VERSION),
    f"is of version 0.0.9, not {VERSION}: make it again": ((62,), "0.0.9"),
    "is for no known machine: want amd64 or arm64": ((40,), VERSION),
    "is no bundle: `make bundle` makes one": ((), VERSION),
}


@needs_builder
@pytest.mark.parametrize("fault", UNFIT)
def test_what_is_no_bundle_of_this_version_is_in_no_image(tmp_path: Path, fault: str) -> None:
    machines, version = UNFIT[fault]
    bundles = [bundle_of(tmp_path / str(n), machine, version) for n, machine in enumerate(machines)] or [tmp_path]
    done = image(bundles, tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(rf"cannot build: .*{re.escape(fault)}.*\n", done.stderr), done.stderr


def test_a_machine_that_cannot_build_an_image_is_told_what_to_install(tmp_path: Path) -> None:
    for name in ("sh", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    done = subprocess.run(IMAGE, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cannot build: neither buildah nor podman is here")
    assert "apt-get install" in done.stderr
