"""The pack, from which the launchers import: it is what the sources say, and holds what a plugin may need."""

import marshal
import subprocess
from pathlib import Path

import pytest

from cni.compiled import pack
from tests.node import ROOT


@pytest.fixture(scope="module")
def packed() -> bytes:
    return pack.pack(str(ROOT))


def read(data: bytes) -> dict[str, tuple[bool, int, int]]:
    _, index = marshal.loads(data[: pack.HEAD])
    return index


def test_the_launchers_import_what_the_sources_say(executables: Path) -> None:
    interpreter = (executables.parent / "libexec/macvlan").read_text().partition(" ")[0].removeprefix("#!")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from cni.compiled import pack; sys.stdout.buffer.write(pack.pack(sys.argv[1]))"
    fresh = subprocess.run([interpreter, "-I", "-c", code, ROOT], capture_output=True, check=True).stdout
    argv = [interpreter, "-c", "import sys; print(sys.implementation.cache_tag)"]
    tag = subprocess.run(argv, capture_output=True, text=True)
    assert (executables / f"modules.{tag.stdout.strip()}").read_bytes() == fresh


def test_the_pack_holds_the_plugins_and_nothing_of_the_command(packed: bytes) -> None:
    index = read(packed)
    assert {"cni", "cni.link.run", "cni.link.plugins.host_device.plugin", "ipam.stores.file"} <= set(index)
    assert not [name for name in index if name.startswith(("cni.cli", "cni.compiled.pack."))]
    assert [name for name, (is_package, _, _) in index.items() if is_package] == sorted(
        ".".join(p.parent.relative_to(ROOT).parts)
        for top in ("cni", "ipam")
        for p in (ROOT / top).rglob("__init__.py")
        if ".".join(p.parent.relative_to(ROOT).parts) in index
    )


def test_docstrings_and_annotations_stay_out_of_the_pack_and_nothing_else(packed: bytes) -> None:
    is_package, place, size = read(packed)["ipam.ranges"]
    names: dict[str, object] = {"__name__": "ipam.ranges"}
    exec(marshal.loads(packed[place : place + size]), names)
    parse = names["parse_address"]
    assert (is_package, parse.__doc__, parse.__annotations__) == (False, None, {})  # type: ignore[attr-defined]
    assert parse("10.0.0.1") == (4, 10 << 24 | 1)  # type: ignore[operator]


def test_an_index_that_the_launchers_would_not_read_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "HEAD", 1000)
    with pytest.raises(ValueError, match="raise HEAD above that, here, in bin/launcher.in"):
        pack.pack(str(ROOT))


def test_the_launchers_and_the_modules_find_index_and_digest_where_the_pack_has_them(packed: bytes) -> None:
    assert f"os.pread(pack, {pack.HEAD}, 0)" in (ROOT / "bin" / "launcher.in").read_text()
    place, size = pack.HEAD - pack.DIGEST, pack.DIGEST
    assert f"DIGEST_AT = {pack.HEAD} - {size}, DIGEST_SIZE = {size}," in (ROOT / "cni/warm/launcher.c").read_text()
    assert f"os.pread(pack, {size}, {place})" in (ROOT / "cni/compiled/packed.py").read_text()
    assert packed[place : place + size].strip(b"0123456789abcdef") == b""
    assert packed[place - 1 : place] == b"\0"


def test_a_submodule_that_its_package_imports_is_loaded_once(executables: Path) -> None:
    """Two modules of one name have two classes of one name, and an `except` catches only one of them."""
    interpreter = (executables.parent / "libexec/macvlan").read_text().partition(" ")[0].removeprefix("#!")
    (modules,) = executables.glob("modules.*")
    lines = (
        "import marshal, os, sys",
        "pack = os.open(sys.argv[1], 0)",
        f"code, index = marshal.loads(os.pread(pack, {pack.HEAD}, 0))",
        "exec(code, {'root': sys.argv[2], 'pack': pack, 'index': index})",
        "from ipam.stores.apiserver.faults import Conflict",
        "from ipam.stores import apiserver",
        "print(apiserver.Conflict is Conflict)",
    )
    argv = [interpreter, "-IS", "-c", "\n".join(lines), str(modules), str(ROOT)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "True\n"


def test_every_module_of_the_pack_can_be_imported_although_names_for_types_are_left_out(executables: Path) -> None:
    """A warm worker imports all of them before its first call."""
    launcher = (executables.parent / "libexec/macvlan").read_text()
    code = launcher[launcher.index("pack = ") :].replace('main("macvlan")', "for name in index: __import__(name)")
    code = f"import marshal, os, sys; root = sys.argv[1]\n{code}"
    argv = [launcher.partition(" ")[0].removeprefix("#!"), "-IS", "-c", code, executables.parent]
    assert subprocess.run(argv, stderr=subprocess.PIPE, text=True).stderr == ""
