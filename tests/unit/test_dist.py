"""The parts of the bundle's build: ELF files, bytecode, archives, the bill of materials, the image's layout."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cni.dist import archive, bill, bytecode, contents, elf, image, libraries
from cni.dist.contents import Entry, Interpreter
from cni.dist.errors import CannotBuild
from cni.dist.origins import Package


def library(search: bytes = b"", alignment: int = 0x1000) -> bytes:
    """A shared library that has a loaded segment, needs libc.so.6, and may have a search path."""
    strings = b"\0libc.so.6\0" + search + b"\0"
    table = [(1, 1)] + ([(29, 11)] if search else []) + [(5, 0x400), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in table)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    loaded = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, 0x800, 0x800, alignment)
    segment = struct.pack("<IIQQQQQQ", 2, 4, 0x200, 0x200, 0x200, len(dynamic), len(dynamic), 8)
    data = bytearray(0x800)
    data[: len(header + loaded + segment)] = header + loaded + segment
    data[0x200 : 0x200 + len(dynamic)] = dynamic
    data[0x400 : 0x400 + len(strings)] = strings
    return bytes(data)


def test_the_interpreter_of_this_machine_is_read_as_its_loader_reads_it() -> None:
    python = Interpreter()
    found = elf.parse(python.executable.read_bytes())
    assert found.interpreter == str(libraries.loader(python))
    listed = subprocess.run([found.interpreter, "--list", python.executable], capture_output=True, text=True).stdout
    assert found.needed
    assert all(name in listed for name in found.needed)


def test_a_search_path_of_the_build_machine_is_removed_and_one_beside_the_file_kept() -> None:
    changed = elf.parse(elf.without_absolute_search(library(b"/opt/python/lib")))
    assert (changed.search, changed.needed) == ((), ("libc.so.6",))
    beside = library(b"$ORIGIN/../x.libs")
    assert elf.without_absolute_search(beside) == beside
    assert elf.without_absolute_search(library()) == library()


def test_a_library_for_small_pages_is_refused_on_aarch64_alone() -> None:
    entries = [Entry("lib/a.so", data=library(alignment=0x10000)), Entry("lib/b.so", data=library())]
    libraries.for_anywhere(entries, "x86_64")
    with pytest.raises(CannotBuild, match=r"^lib/b.so: linked for pages smaller than 64 KB"):
        libraries.for_anywhere(entries, "aarch64")
    libraries.for_anywhere(entries[:1], "aarch64")


def test_the_same_source_gives_the_same_bytecode_in_another_place(tmp_path: Path) -> None:
    source = b'a = {"x", "y", None, 1}\ndef f(x): return x in {"p", "q", "r", None} and "long string " * 2\n'
    first = bytecode.compiled([Entry("m/b.py", data=source), Entry("m/a.py", data=source)], Path(sys.executable))
    file = tmp_path / "elsewhere.py"
    file.write_bytes(source)
    second = bytecode.compiled([Entry("m/a.py", file), Entry("m/b.py", file)], Path(sys.executable))
    assert [(e.target, e.read()) for e in first] == [(e.target, e.read()) for e in second]
    assert [e.target for e in first] == ["m/a.pyc", "m/b.pyc"]
    assert first[0].read()[4:8] == b"\1\0\0\0"  # PEP 552: a hash of the source, never compared
    assert b"m/a.py" in first[0].read()


def test_a_module_that_is_not_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotBuild, match="broken.py"):
        bytecode.compiled([Entry("broken.py", data=b"def")], Path(sys.executable))


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
        Entry("bin/macvlan", data=b"m", origin="railcni"),
        Entry("lib/libc.so.6", data=b"c", origin="libc6"),
        Entry("bin/railcni-macvlan", link="macvlan", origin="railcni"),
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


def test_an_image_is_an_oci_layout_whose_digests_hold(tmp_path: Path) -> None:
    (tmp_path / "bundle/bin").mkdir(parents=True)
    (tmp_path / "bundle/bin/railcni").write_text("x")
    (tmp_path / "bundle/bin/railcni").chmod(0o755)
    files = []
    for _ in range(2):
        files.append(image.build(tmp_path / "bundle", tmp_path).read_bytes())
    assert files[0] == files[1]
    with tarfile.open(next(tmp_path.glob("railcni-*.oci.tar"))) as tar:
        blobs = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for name, blob in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"

    def blob(descriptor: dict[str, str]) -> bytes:
        return blobs["blobs/" + descriptor["digest"].replace(":", "/")]

    manifest = json.loads(blob(json.loads(blobs["index.json"])["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["Entrypoint"] == ["/opt/railcni/bin/railcni"]
    (tmp_path / "layer").write_bytes(blob(manifest["layers"][0]))
    with tarfile.open(tmp_path / "layer") as layer:
        assert layer.getnames() == ["opt/railcni", "opt/railcni/bin", "opt/railcni/bin/railcni"]
        assert layer.getmember("opt/railcni/bin/railcni").mode == 0o755


@pytest.mark.skipif(
    not shutil.which("cc") or not shutil.which("strip"), reason="needs a C compiler: apt-get install gcc"
)
def test_what_only_a_debugger_reads_is_taken_out(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int twice(int n) { return 2 * n; }\n")
    subprocess.run(["cc", "-g", "-shared", "-fPIC", source, "-o", tmp_path / "a.so"], check=True)
    entry = Entry("lib/a.so", tmp_path / "a.so")
    before = elf.parse(entry.read())
    assert b".debug_info\0" in entry.read()
    libraries.for_anywhere([entry], "x86_64")
    assert b".debug_info\0" not in entry.read()
    assert elf.parse(entry.read()) == before
    (tmp_path / "b.so").write_bytes(entry.read())
    assert ctypes.CDLL(str(tmp_path / "b.so")).twice(21) == 42
