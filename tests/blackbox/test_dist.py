"""The parts of the bundle's build: ELF files, bytecode, archives, the bill of materials, the image's layout."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cni import VERSION
from cni.dist import archive, bill, bundle, contents, elf, image
from cni.dist.bill import Package
from cni.dist.contents import PYTHON, Bundle, CannotBuild
from tests.tools import needs

needs_compiler = pytest.mark.skipif(
    not shutil.which("cc") or not shutil.which("strip"), reason="needs a C compiler: apt-get install gcc"
)

needs_readelf = needs("readelf", "apt-get install binutils")


def library(folder: Path, *flags: str) -> Path:
    """A shared library that was linked with `flags`."""
    source, file = folder / "a.c", folder / "a.so"
    source.write_text("int twice(int n) { return 2 * n; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", *flags, source, "-o", file], check=True)
    return file


def bundle_with(top: Path, **files: bytes | Path) -> Bundle:
    """A bundle in the making with these files, by their names without a folder ("a__py" is "m/a.py")."""
    made = Bundle(top)
    for name, content in files.items():
        made.add(f"m/{name.replace('__', '.')}", content)
    return made


@needs_readelf
def test_the_interpreter_of_this_machine_is_read_as_its_loader_reads_it() -> None:
    found = elf.parse(PYTHON)
    assert found.interpreter == str(elf.loader())
    done = subprocess.run([found.interpreter, "--list", PYTHON], capture_output=True, text=True)
    assert "libc.so.6" in done.stdout


@needs_compiler
@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_of_the_build_machine_is_removed_and_one_beside_the_file_kept(tmp_path: Path, tags: str) -> None:
    built = library(tmp_path, f"-Wl,{tags},-rpath,/opt/python/lib:$ORIGIN")
    assert elf.parse(built).search == ("/opt/python/lib", "$ORIGIN")
    elf.remove_absolute_search(built)
    assert elf.parse(built).search == ()
    assert ctypes.CDLL(str(built)).twice(21) == 42
    for flags in ([f"-Wl,{tags},-rpath,$ORIGIN/../x.libs"], []):
        unchanged = library(tmp_path, *flags)
        before = unchanged.read_bytes()
        elf.remove_absolute_search(unchanged)
        assert unchanged.read_bytes() == before


@needs_compiler
def test_a_library_for_small_pages_is_refused_on_aarch64_alone(tmp_path: Path) -> None:
    made = bundle_with(tmp_path / "bundle", a__so=library(tmp_path, "-Wl,-z,max-page-size=65536"))
    elf.for_anywhere(made, "aarch64")
    made.add("m/b.so", library(tmp_path, "-Wl,-z,max-page-size=4096"))
    elf.for_anywhere(made, "x86_64")
    with pytest.raises(CannotBuild, match=r"^m/b.so: linked for pages smaller than 64 KB"):
        elf.for_anywhere(made, "aarch64")


def test_the_same_source_gives_the_same_bytecode_in_another_place(tmp_path: Path) -> None:
    source = b'a = {"x", "y", None, 1}\ndef f(x): return x in {"p", "q", "r", None} and "long string " * 2\n'
    made = [bundle_with(tmp_path / "one", b__py=source, a__py=source)]
    file = tmp_path / "elsewhere.py"
    file.write_bytes(source)
    made.append(bundle_with(tmp_path / "two", a__py=file, b__py=file))
    for one in made:
        bundle.compile_modules(one)
        assert set(one.origins) == {"m/a.pyc", "m/b.pyc"}
        assert {path.name for path in (one.top / "m").iterdir()} == {"a.pyc", "b.pyc"}
    for name in ("m/a.pyc", "m/b.pyc"):
        assert (made[0].top / name).read_bytes() == (made[1].top / name).read_bytes()
    first = (made[0].top / "m/a.pyc").read_bytes()
    assert first[4:8] == b"\1\0\0\0"  # PEP 552: a hash of the source, never compared
    assert b"m/a.py" in first


def test_a_module_that_is_not_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotBuild, match=r"broken.py"):
        bundle.compile_modules(bundle_with(tmp_path / "bundle", broken__py=b"def"))


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
    targets = [target for target, _ in (*contents.standard_library(), *contents.project_files())]
    targets += [target for target, *_ in contents.packages(contents.distributions())]
    assert not [t for t in targets if "__pycache__" in t or t.startswith("cni/dist/") or t.endswith(("/RECORD", ".a"))]
    names = {t.removeprefix(f"{contents.LIBRARY}/").split("/")[0] for t in targets if t.startswith(contents.LIBRARY)}
    assert {"os.py", "encodings", "json", "sqlite3", "ssl.py", "http", "site-packages"} <= names
    assert not {"test", "tkinter", "idlelib", "ensurepip", "turtledemo", "lib2to3"} & names


def test_the_bill_names_each_files_checksum_and_package(tmp_path: Path) -> None:
    made = bundle_with(tmp_path, macvlan=b"m")
    made.add("lib/libc.so.6", b"c", "libc6")
    packages = [Package("libc6", "2.36", "pkg:deb/debian/libc6@2.36"), Package("railcni", "0.1.0", "", "Apache-2.0")]
    document = json.loads(bill.document("railcni-0.1.0", made, packages))
    assert document["spdxVersion"] == "SPDX-2.3"
    assert ssl.OPENSSL_VERSION in document["comment"]
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
    for described, one in zip(manifests, bundles, strict=True):
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
            assert layer.extractfile("opt/railcni/bin/railcni").read() == (one / "bin/railcni").read_bytes()  # type: ignore[union-attr]


@needs("git", "apt-get install git")
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
    made = bundle_with(tmp_path / "bundle", a__so=library(tmp_path, "-g"))
    file = made.top / "m/a.so"
    before = elf.parse(file)
    assert b".debug_info\0" in file.read_bytes()
    elf.for_anywhere(made, "x86_64")
    assert b".debug_info\0" not in file.read_bytes()
    assert elf.parse(file) == before
    assert ctypes.CDLL(str(file)).twice(21) == 42
