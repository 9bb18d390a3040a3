"""The parts of the bundle's build: ELF files, bytecode, the bill of materials."""

from __future__ import annotations

import ctypes
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from cni.compiled import pack
from cni.dist import bundle
from cni.dist.bundle import PYTHON, CannotBuild
from tests.tools import needs, script

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


def bundle_with(top: Path, **files: bytes | Path) -> Path:
    """A bundle in the making with these files, by their names without a folder ("a__py" is "m/a.py")."""
    (top / "m").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        (top / "m" / name.replace("__", ".")).write_bytes(data)
    return top


@needs_readelf
def test_the_interpreter_of_this_machine_is_read_as_its_loader_reads_it() -> None:
    assert "libc.so.6" in subprocess.run([bundle.loader(), "--list", PYTHON], capture_output=True, text=True).stdout


@needs_compiler
@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_of_the_build_machine_is_removed_and_one_beside_the_file_kept(tmp_path: Path, tags: str) -> None:
    made = bundle_with(tmp_path / "bundle", a__so=library(tmp_path, f"-Wl,{tags},-rpath,/opt/python/lib:$ORIGIN"))
    assert bundle.search_path(made / "m/a.so") == ["/opt/python/lib", "$ORIGIN"]
    if shutil.which("patchelf"):
        bundle.for_anywhere(made, "x86_64")
        assert bundle.search_path(made / "m/a.so") == []
        assert ctypes.CDLL(str(made / "m/a.so")).twice(21) == 42
    else:
        with pytest.raises(CannotBuild, match=r"^m/a.so searches libraries in /opt/python/lib:\$ORIGIN: .*patchelf"):
            bundle.for_anywhere(made, "x86_64")
    for flags in ([f"-Wl,{tags},-rpath,$ORIGIN/../x.libs"], []):
        unchanged = library(tmp_path, *flags)
        kept = bundle_with(tmp_path / "bundle", a__so=unchanged)
        bundle.for_anywhere(kept, "x86_64")
        assert (kept / "m/a.so").read_bytes() == unchanged.read_bytes()


@needs_compiler
def test_a_library_for_small_pages_is_refused_on_aarch64_alone(tmp_path: Path) -> None:
    made = bundle_with(tmp_path / "bundle", a__so=library(tmp_path, "-Wl,-z,max-page-size=65536"))
    bundle.for_anywhere(made, "aarch64")
    bundle_with(made, b__so=library(tmp_path, "-Wl,-z,max-page-size=4096"))
    bundle.for_anywhere(made, "x86_64")
    with pytest.raises(CannotBuild, match=r"^m/b.so: linked for pages smaller than 64 KB"):
        bundle.for_anywhere(made, "aarch64")


def test_the_same_source_gives_the_same_bytecode_in_another_place(tmp_path: Path) -> None:
    source = b'a = {"x", "y", None, 1}\ndef f(x): return x in {"p", "q", "r", None} and "long string " * 2\n'
    made = [bundle_with(tmp_path / "one", b__py=source, a__py=source)]
    file = tmp_path / "elsewhere.py"
    file.write_bytes(source)
    made.append(bundle_with(tmp_path / "two", a__py=file, b__py=file))
    for one in made:
        bundle.compile_modules(one)
        assert {path.name for path in (one / "m").iterdir()} == {"a.pyc", "b.pyc"}
    for name in ("m/a.pyc", "m/b.pyc"):
        assert (made[0] / name).read_bytes() == (made[1] / name).read_bytes()
    first = (made[0] / "m/a.pyc").read_bytes()
    assert first[4:8] == b"\1\0\0\0"  # PEP 552: a hash of the source, never compared
    assert b"m/a.py" in first


def test_a_module_that_is_not_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotBuild, match=r"broken.py"):
        bundle.compile_modules(bundle_with(tmp_path / "bundle", broken__py=b"def"))


def test_the_bundle_has_what_the_command_needs_and_no_tool_of_development() -> None:
    names = {dist.name.lower().replace("-", "_") for dist in bundle.distributions()}
    assert {"pydantic", "pydantic_core", "rich", "pyyaml", "pyroute2", "typing_extensions"} <= names
    assert not {"pytest", "mypy", "ruff", "hypothesis", "packaging"} & names


def test_nothing_that_cannot_run_or_tells_of_the_build_machine_is_put_in() -> None:
    targets = [target for target, _ in (*bundle.standard_library(), *bundle.project_files())]
    targets += [target for target, _ in bundle.packages(bundle.distributions())]
    assert not [t for t in targets if "__pycache__" in t or t.startswith("cni/dist/") or t.endswith(("/RECORD", ".a"))]
    names = {t.removeprefix(f"{bundle.LIBRARY}/").split("/")[0] for t in targets if t.startswith(bundle.LIBRARY)}
    assert {"os.py", "encodings", "json", "sqlite3", "ssl.py", "http", "site-packages"} <= names
    assert not {"test", "tkinter", "idlelib", "ensurepip", "turtledemo", "lib2to3"} & names


def test_the_bill_names_the_package_of_each_file(tmp_path: Path) -> None:
    bill = script("bill")
    own = tmp_path / "libown.so.1"
    own.write_bytes(b"")
    found = bill.packages(bundle.distributions(), [PYTHON, bundle.loader(), own])
    document = json.loads(bill.document("railcni-0.1.0", found))
    assert document["spdxVersion"] == "SPDX-2.3"
    assert ssl.OPENSSL_VERSION in document["comment"]
    packages = {package["name"]: package for package in document["packages"]}
    assert {"railcni", "pydantic", "libown.so.1"} <= packages.keys()
    assert packages["pydantic"]["externalRefs"][0]["referenceLocator"].startswith("pkg:pypi/pydantic@2.")
    if shutil.which("dpkg-query"):
        assert packages["libc6"]["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/")
    owned = {r["relatedSpdxElement"] for r in document["relationships"] if r["relationshipType"] == "CONTAINS"}
    assert owned == {p["SPDXID"] for name, p in packages.items() if name != "railcni"}


@needs_compiler
def test_what_only_a_debugger_reads_is_taken_out(tmp_path: Path) -> None:
    made = bundle_with(tmp_path / "bundle", a__so=library(tmp_path, "-g"))
    file = made / "m/a.so"
    before = bundle.search_path(file)
    assert b".debug_info\0" in file.read_bytes()
    bundle.for_anywhere(made, "x86_64")
    assert b".debug_info\0" not in file.read_bytes()
    assert bundle.search_path(file) == before
    assert ctypes.CDLL(str(file)).twice(21) == 42


def test_the_rooms_that_no_plugin_imports_are_tried_in_a_bundle_and_make_no_pack_old() -> None:
    rooms = {name.partition(".")[2] for name in pack.NOT_OF_PLUGINS if name.count(".") == 1}
    assert {*bundle.PROGRAMS, "dist"} == rooms
    makefile = (bundle.PROJECT / "Makefile").read_text().splitlines()
    (line,) = (line for line in makefile if line.startswith("PROGRAMS := "))
    assert {*line.split()[2:]} == rooms
