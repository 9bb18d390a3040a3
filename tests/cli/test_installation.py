"""The installation: where a runtime looks for plugins, paths below a root, and the steps of install and uninstall."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni.library.installation import change, content
from cni.library.installation.change import Folder
from cni.library.installation.files import below
from cni.library.installation.layout import PLAIN, PREFIXED
from cni.library.installation.options import plugin_folder
from cni.shared.spec.errors import InvalidConfig

# --- which folder ---


def host(top: Path, **files: str) -> str:
    """A root with those files ("/" as "__") and the folders that end in "__"."""
    for name, text in files.items():
        path = top / name.replace("__", "/").replace("_toml", ".toml").replace("_conf", ".conf")
        if name.endswith("__"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return str(top)


V1 = '[plugins.cri.cni]\nbin_dir = "/v1/bin"'
V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/v2/bin"'
V3 = 'version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\nbin_dirs = ["/gone/bin", "/v3/bin", "/v2/bin"]'


@pytest.mark.parametrize(("text", "folder"), [(V1, "/v1/bin"), (V2, "/v2/bin"), (V3, "/v3/bin"), ("", "/opt/cni/bin")])
def test_containerd_says_where_in_every_version_of_its_configuration(tmp_path: Path, text: str, folder: str) -> None:
    root = host(
        tmp_path, etc__containerd__config_toml=text, v1__bin__="", v2__bin__="", v3__bin__="", opt__cni__bin__=""
    )
    assert plugin_folder(root) == folder


def test_what_containerd_imports_overrides_what_it_says(tmp_path: Path) -> None:
    root = host(
        tmp_path, etc__containerd__config_toml='imports = ["conf.d/*.toml"]\n' + V2, etc__containerd__conf_d__a_toml=V3,
        v2__bin__="", v3__bin__="",
    )  # fmt: skip
    (tmp_path / "etc/containerd/conf_d").rename(tmp_path / "etc/containerd/conf.d")
    assert plugin_folder(root) == "/v3/bin"


def test_a_containerd_that_runs_no_pods_does_not_count(tmp_path: Path) -> None:
    disabled = 'disabled_plugins = ["cri"]\n' + V2
    crio = '[crio.network]\nplugin_dirs = ["/var/lib/cni/bin", "/usr/libexec/cni"]'
    root = host(tmp_path, etc__containerd__config_toml=disabled, etc__crio__crio_conf=crio, v2__bin__="")
    host(tmp_path, var__lib__cni__bin__="")
    assert plugin_folder(root) == "/var/lib/cni/bin"


def test_the_last_file_of_crio_that_says_it_counts(tmp_path: Path) -> None:
    root = host(tmp_path, etc__crio__crio_conf='[crio.network]\nplugin_dirs = ["/a/bin"]', a__bin__="", b__bin__="")
    parts = tmp_path / "etc/crio/crio.conf.d"
    parts.mkdir()
    (parts / "00-default").write_text('[crio.network]\nplugin_dirs = ["/b/bin"]')
    (parts / "99-other").write_text('[crio.runtime]\nlog = "x"')
    (parts / "99-folder").mkdir()
    assert plugin_folder(root) == "/b/bin"


def test_k3s_and_rke2_write_a_configuration_of_their_own(tmp_path: Path) -> None:
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "/var/lib/rancher/k3s/data/cni"'
    root = host(tmp_path, var__lib__rancher__k3s__agent__etc__containerd__config_toml=text, opt__cni__bin__="")
    host(tmp_path, var__lib__rancher__k3s__data__cni__="")
    assert plugin_folder(root) == "/var/lib/rancher/k3s/data/cni"


def test_without_a_configuration_the_usual_folder_that_exists_is_taken(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no plugin folder found.*--to"):
        plugin_folder(str(tmp_path))
    assert plugin_folder(host(tmp_path, opt__cni__bin__="")) == "/opt/cni/bin"
    host(tmp_path, var__lib__rancher__k3s__data__current__bin__="")
    with pytest.raises(InvalidConfig, match=r"--to: .*data/current/bin \(k3s\).*|--to: .*/opt/cni/bin"):
        plugin_folder(str(tmp_path))


def test_two_runtimes_with_two_folders_are_both_named(tmp_path: Path) -> None:
    root = host(tmp_path, etc__containerd__config_toml=V2, etc__crio__crio_conf="", v2__bin__="", opt__cni__bin__="")
    with pytest.raises(InvalidConfig) as caught:
        plugin_folder(root)
    assert all(word in caught.value.msg for word in ("--to", "/v2/bin (containerd)", "/opt/cni/bin (CRI-O)"))
    (tmp_path / "v2/bin").rmdir()
    (tmp_path / "v2/bin").symlink_to("/opt/cni/bin")  # one folder, as the host sees it
    assert plugin_folder(root) == "/v2/bin"


def test_a_folder_that_is_missing_or_a_file_is_said(tmp_path: Path) -> None:
    root = host(tmp_path, opt__cni="")
    with pytest.raises(InvalidConfig, match="/opt/cni is no directory"):
        plugin_folder(root, "/opt/cni")
    with pytest.raises(InvalidConfig, match="/opt/other does not exist below"):
        plugin_folder(root, "/opt/other")
    host(tmp_path, etc__containerd__config_toml="[[[")
    with pytest.raises(InvalidConfig, match=r"config.toml is not TOML.*--to"):
        plugin_folder(root)


def test_links_of_a_host_are_followed_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "data/abc/bin").mkdir(parents=True)
    (tmp_path / "data/current").symlink_to("/data/abc")
    (tmp_path / "link").symlink_to("../../../data/./current/bin")
    assert below(str(tmp_path), "/link") == str(tmp_path / "data/abc/bin")
    assert below(str(tmp_path), "/../../data/../new") == str(tmp_path / "new")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InvalidConfig, match="symbolic links"):
        below(str(tmp_path), "/a")


# --- the steps ---


def bundle(top: Path, mark: str) -> content.Content:
    """A bundle with plugins that tell whose they are, as an executable that is run by hand does."""
    (top / "bin").mkdir(parents=True)
    (top / "VERSION").write_text(f"{mark}\n")
    for name in PLAIN:
        (top / "bin" / name).write_text(f"#!/bin/sh\necho CNI plugin {name} of railcni\n")
        (top / "bin" / name).chmod(0o755)
    return content.bundle(str(top))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(change, "sees_all", lambda: True)
    (tmp_path / "plugins").mkdir()
    return Folder(str(tmp_path / "plugins"), "/opt/cni/bin")


def texts(folder: Folder, wanted: content.Content, replace: bool = False) -> list[str]:
    """The steps of an install, which is then carried out."""
    foreseen = [
        step.text.replace(wanted.version, "NEW") for step in change.steps_to(folder, wanted, PLAIN if replace else ())
    ]
    change.install(folder, wanted, PLAIN if replace else ())
    return foreseen


def test_a_version_is_whole_and_tried_before_it_is_used(folder: Folder, tmp_path: Path) -> None:
    wanted = bundle(tmp_path / "one", "1")
    links = [f"link {name}" for name in PREFIXED]
    first = ["copy version NEW", "run the plugins of version NEW", "switch to version NEW", *links]
    assert texts(folder, wanted) == first
    assert texts(folder, wanted) == []


def test_the_version_before_stays_and_older_ones_go_when_nothing_runs_from_them(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three, four = (bundle(tmp_path / mark, mark) for mark in "1234")
    monkeypatch.setattr(change, "is_unused", lambda path, version: version != one.version)
    for wanted in (one, two, three):
        change.install(folder, wanted)
    Path(folder.bundle, ".new.x").touch()
    change_to = [
        "copy version NEW",
        "run the plugins of version NEW",
        f"remember {three.version} as the version before",
    ]
    assert texts(folder, four) == [
        "remove .new.x, which an interrupted installer left", *change_to, "switch to version NEW",
        f"remove version {two.version}",
    ]  # fmt: skip
    assert texts(folder, three) == [
        "run the plugins of version NEW", f"remember {four.version} as the version before", "switch to version NEW"
    ]  # fmt: skip


def test_plain_names_are_taken_only_when_asked_and_what_has_them_is_kept_first(folder: Folder, tmp_path: Path) -> None:
    wanted = bundle(tmp_path / "one", "1")
    Path(folder.path, "macvlan").touch()
    change.install(folder, wanted)
    assert texts(folder, wanted) == []
    keep = "keep the macvlan that is there, to be put back by uninstall"
    assert texts(folder, wanted, True) == [keep, *(f"link {name}" for name in PLAIN)]


def test_a_prefixed_name_of_others_is_refused(folder: Folder, tmp_path: Path) -> None:
    Path(folder.path, "railcni-macvlan").touch()
    with pytest.raises(InvalidConfig, match="railcni-macvlan in the plugin folder is not railcni's: move it away"):
        change.steps_to(folder, bundle(tmp_path / "one", "1"), PLAIN)


def test_uninstall_puts_back_what_was_replaced_and_nothing_else(folder: Folder, tmp_path: Path) -> None:
    for name in ("macvlan", "whereabouts"):
        Path(folder.path, name).write_text("of others")
    change.install(folder, bundle(tmp_path / "one", "1"), PLAIN)
    for name in ("whereabouts", "rdma"):
        Path(folder.path, name).unlink()
    Path(folder.path, "whereabouts").write_text("newer")
    assert [step.text for step in change.steps_away(folder, lambda found: None)] == [
        "drop the whereabouts that was kept: another has been installed in its place since",
        "remove the link sriov", "remove the link host-device", "put back the macvlan that was there before",
        *(f"remove the link {name}" for name in reversed(PREFIXED)), "remove railcni-bundle with all versions",
    ]  # fmt: skip
    change.uninstall(folder, lambda found: None)
    left = {path.name: path.read_text() for path in Path(folder.path).iterdir()}
    assert left == {"whereabouts": "newer", "macvlan": "of others"}


def test_a_version_that_was_changed_is_not_mended_in_place(folder: Folder, tmp_path: Path) -> None:
    wanted = bundle(tmp_path / "one", "1")
    change.install(folder, wanted)
    for number in (1, 2):
        Path(folder.bundle, "current/VERSION").write_text("damaged")
        assert texts(folder, wanted)[0] == f"copy version NEW.{number}"
        assert texts(folder, wanted) == []
