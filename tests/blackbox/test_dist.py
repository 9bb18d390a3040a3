"""The parts of the bundle's build: ELF files, bytecode, archives, the bill of materials, the image's layout."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cni import VERSION
from cni.dist import archive, bill, bytecode, contents, elf, image, libraries
from cni.dist.contents import BundleEntry, Interpreter
from cni.dist.errors import CannotBuild
from cni.dist.origins import Package

needs_compiler = pytest.mark.skipif(
    not shutil.which("cc") or not shutil.which("strip"), reason="needs a C compiler: apt-get install gcc"
)


def library(folder: Path, *flags: str) -> bytes:
    """A shared library that was linked with `flags`."""
    source, file = folder / "a.c", folder / "a.so"
    source.write_text("int twice(int n) { return 2 * n; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", *flags, source, "-o", file], check=True)
    return file.read_bytes()


def test_the_interpreter_of_this_machine_is_read_as_its_loader_reads_it() -> None:
    python = Interpreter()
    found = elf.parse(python.executable.read_bytes())
    assert found.interpreter == str(libraries.loader(python))
    done = subprocess.run([found.interpreter, "--list", python.executable], capture_output=True, text=True)
    assert "libc.so.6" in done.stdout


@needs_compiler
@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_of_the_build_machine_is_removed_and_one_beside_the_file_kept(tmp_path: Path, tags: str) -> None:
    built = library(tmp_path, f"-Wl,{tags},-rpath,/opt/python/lib:$ORIGIN")
    assert elf.parse(built).search == ("/opt/python/lib", "$ORIGIN")
    changed = elf.without_absolute_search(built)
    assert elf.parse(changed).search == ()
    (tmp_path / "b.so").write_bytes(changed)
    assert ctypes.CDLL(str(tmp_path / "b.so")).twice(21) == 42
    beside = library(tmp_path, f"-Wl,{tags},-rpath,$ORIGIN/../x.libs")
    assert elf.without_absolute_search(beside) == beside
    plain = library(tmp_path)
    assert elf.without_absolute_search(plain) == plain


@needs_compiler
def test_a_library_for_small_pages_is_refused_on_aarch64_alone(tmp_path: Path) -> None:
    large, small = (library(tmp_path, f"-Wl,-z,max-page-size={size}") for size in (0x10000, 0x1000))
    entries = [BundleEntry("lib/a.so", data=large), BundleEntry("lib/b.so", data=small)]
    libraries.for_anywhere(entries, "x86_64")
    with pytest.raises(CannotBuild, match=r"^lib/b.so: linked for pages smaller than 64 KB"):
        libraries.for_anywhere(entries, "aarch64")
    libraries.for_anywhere(entries[:1], "aarch64")


def test_the_same_source_gives_the_same_bytecode_in_another_place(tmp_path: Path) -> None:
    source = b'a = {"x", "y", None, 1}\ndef f(x): return x in {"p", "q", "r", None} and "long string " * 2\n'
    first = bytecode.compiled(
        [BundleEntry("m/b.py", data=source), BundleEntry("m/a.py", data=source)], Path(sys.executable)
    )
    file = tmp_path / "elsewhere.py"
    file.write_bytes(source)
    second = bytecode.compiled([BundleEntry("m/a.py", file), BundleEntry("m/b.py", file)], Path(sys.executable))
    assert [(e.target, e.read()) for e in first] == [(e.target, e.read()) for e in second]
    assert [e.target for e in first] == ["m/a.pyc", "m/b.pyc"]
    assert first[0].read()[4:8] == b"\1\0\0\0"  # PEP 552: a hash of the source, never compared
    assert b"m/a.py" in first[0].read()


def test_a_module_that_is_not_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotBuild, match="broken.py"):
        bytecode.compiled([BundleEntry("broken.py", data=b"def")], Path(sys.executable))


def test_an_archive_does_not_tell_when_by_whom_and_in_which_order_its_files_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = []
    for number, names in enumerate((["a", "b/c", "b/d"], ["b/d", "b/c", "a"])):
        top = tmp_path / str(number)
        for name in names:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(name)
            os.utime(top / name, (number * 1000 + 5, number))
        (top / "b/c").chmod((0o700, 0o755)[number])
        (top / "link").symlink_to("a")
        packed.append(archive.compress(archive.pack(top, "x")))
    assert packed[0] == packed[1]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    (tmp_path / "dated.tar").write_bytes(archive.pack(tmp_path / "0", "x"))
    with tarfile.open(tmp_path / "dated.tar") as tar:
        assert {(m.mtime, m.uid, m.uname) for m in tar} == {(86400, 0, "")}
        assert tar.getnames() == ["x", "x/a", "x/b", "x/b/c", "x/b/d", "x/link"]


def test_the_bundle_has_what_the_command_needs_and_no_tool_of_development() -> None:
    names = [dist.name.lower() for dist in contents.distributions()]
    assert {"pydantic", "pydantic_core", "rich", "pyyaml", "pyroute2", "typing_extensions"} <= {
        name.replace("-", "_") for name in names
    }
    assert not {"pytest", "mypy", "ruff", "hypothesis", "packaging"} & set(names)


def test_nothing_that_cannot_run_or_tells_of_the_build_machine_is_put_in() -> None:
    python = Interpreter()
    targets = [e.target for e in contents.standard_library(python)]
    targets += [e.target for e in contents.packages(python, contents.distributions())]
    targets += [e.target for e in contents.project_files()]
    assert not [t for t in targets if "__pycache__" in t or t.startswith("cni/dist/") or t.endswith(("/RECORD", ".a"))]
    names = {t.removeprefix(f"{python.library}/").split("/")[0] for t in targets if t.startswith(python.library)}
    assert {"os.py", "encodings", "json", "sqlite3", "ssl.py", "http", "site-packages"} <= names
    assert not {"test", "tkinter", "idlelib", "ensurepip", "turtledemo", "lib2to3"} & names


def test_the_bill_names_each_files_checksum_and_package() -> None:
    entries = [
        BundleEntry("bin/macvlan", data=b"m", origin="railcni"),
        BundleEntry("lib/libc.so.6", data=b"c", origin="libc6"),
        BundleEntry("bin/railcni-macvlan", link="macvlan", origin="railcni"),
    ]
    packages = [Package("libc6", "2.36", "pkg:deb/debian/libc6@2.36"), Package("railcni", "0.1.0", "", "Apache-2.0")]
    document = json.loads(bill.document("railcni-0.1.0", entries, packages, ["OpenSSL 3.0.17"]))
    assert document["spdxVersion"] == "SPDX-2.3"
    assert "OpenSSL 3.0.17" in document["comment"]
    (file,) = [f for f in document["files"] if f["fileName"] == "./lib/libc.so.6"]
    assert file["checksums"][1] == {"algorithm": "SHA256", "checksumValue": hashlib.sha256(b"c").hexdigest()}
    owners = {r["spdxElementId"] for r in document["relationships"] if r["relatedSpdxElement"] == file["SPDXID"]}
    (package,) = [p for p in document["packages"] if p["SPDXID"] in owners]
    assert (package["name"], package["versionInfo"]) == ("libc6", "2.36")


def bundle_of(folder: Path, machine: int, version: str = VERSION) -> Path:
    """What an image is made of: a program for `machine`, as elf(5) numbers them, and the version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "VERSION").write_text(f"{version}\n")
    (folder / "bin/railcni").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + bytes([machine, 0]))
    (folder / "bin/railcni").chmod(0o755)
    return folder


def test_an_image_is_an_oci_index_of_both_architectures_whose_digests_hold(tmp_path: Path) -> None:
    bundles = [bundle_of(tmp_path / "one", 62), bundle_of(tmp_path / "two", 183)]
    file = image.build(bundles, tmp_path)
    first = file.read_bytes()
    assert image.build(bundles, tmp_path).read_bytes() == first
    assert file.name == f"railcni-{VERSION}.oci.tar"
    with tarfile.open(file) as tar:
        blobs = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for name, blob in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"

    def blob(descriptor: dict[str, Any]) -> bytes:
        found = blobs["blobs/" + descriptor["digest"].replace(":", "/")]
        assert len(found) == descriptor["size"]
        return found

    (named,) = json.loads(blobs["index.json"])["manifests"]
    assert named["annotations"]["org.opencontainers.image.ref.name"] == image.NAME
    assert named["mediaType"] == json.loads(blob(named))["mediaType"] == "application/vnd.oci.image.index.v1+json"
    manifests = json.loads(blob(named))["manifests"]
    assert {m["mediaType"] for m in manifests} == {"application/vnd.oci.image.manifest.v1+json"}
    assert [m["platform"]["architecture"] for m in manifests] == ["amd64", "arm64"]
    for described, bundle in zip(manifests, bundles, strict=True):
        manifest = json.loads(blob(described))
        config = json.loads(blob(manifest["config"]))
        assert config["architecture"] == described["platform"]["architecture"]
        assert config["config"]["Entrypoint"] == ["/opt/railcni/bin/railcni"]
        labels = {key.rpartition(".")[2] for key in config["config"]["Labels"]}
        assert {"title", "version", "description", "licenses"} <= labels
        assert config["config"]["Labels"] == manifest["annotations"]
        (tmp_path / "layer").write_bytes(blob(manifest["layers"][0]))
        with tarfile.open(tmp_path / "layer") as layer:
            assert layer.getmember("opt/railcni/bin/railcni").mode == 0o755
            assert layer.extractfile("opt/railcni/bin/railcni").read() == (bundle / "bin/railcni").read_bytes()  # type: ignore[union-attr]


def test_the_labels_have_the_revision_and_the_addresses_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    shutil.copy(contents.PROJECT / "pyproject.toml", tmp_path)
    for verb in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *verb], check=True)
    revision = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(image, "PROJECT", tmp_path)
    assert image._labels()["org.opencontainers.image.revision"] == revision
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write('[project.urls]\nSource = "https://h/source"\n')
    labels = {key.rpartition(".")[2]: value for key, value in image._labels().items()}
    assert (labels["revision"], labels["source"]) == (f"{revision}-dirty", "https://h/source")
    assert "documentation" not in labels


@pytest.mark.parametrize(
    ("machines", "version", "fault"),
    [
        ((62, 62), VERSION, "is for amd64 too"),
        ((62,), "0.0.9", "is of version 0.0.9"),
        ((40,), VERSION, "e_machine 40"),
        ((), VERSION, "is no bundle"),
    ],
)
def test_what_is_no_bundle_of_this_version_is_refused(
    tmp_path: Path, machines: tuple[int, ...], version: str, fault: str
) -> None:
    bundles = [bundle_of(tmp_path / str(n), machine, version) for n, machine in enumerate(machines)] or [tmp_path]
    with pytest.raises(CannotBuild, match=fault):
        image.build(bundles, tmp_path)


@needs_compiler
def test_what_only_a_debugger_reads_is_taken_out(tmp_path: Path) -> None:
    entry = BundleEntry("lib/a.so", data=library(tmp_path, "-g"))
    before = elf.parse(entry.read())
    assert b".debug_info\0" in entry.read()
    libraries.for_anywhere([entry], "x86_64")
    assert b".debug_info\0" not in entry.read()
    assert elf.parse(entry.read()) == before
    (tmp_path / "b.so").write_bytes(entry.read())
    assert ctypes.CDLL(str(tmp_path / "b.so")).twice(21) == 42
