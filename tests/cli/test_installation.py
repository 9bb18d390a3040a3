"""The installation: where a runtime looks for plugins, and paths below a root."""

from pathlib import Path

import pytest

from cni.node.installation.files import below
from cni.node.installation.options import plugin_folder
from cni.shared.spec.errors import InvalidConfig


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
    with pytest.raises(InvalidConfig, match="no plugin folder found.*--plugin-dir"):
        plugin_folder(str(tmp_path))
    assert plugin_folder(host(tmp_path, opt__cni__bin__="")) == "/opt/cni/bin"
    host(tmp_path, var__lib__rancher__k3s__data__current__bin__="")
    with pytest.raises(InvalidConfig, match=r"--plugin-dir: .*data/current/bin \(k3s\).*|--plugin-dir: .*/opt/cni/bin"):
        plugin_folder(str(tmp_path))


def test_two_runtimes_with_two_folders_are_both_named(tmp_path: Path) -> None:
    root = host(tmp_path, etc__containerd__config_toml=V2, etc__crio__crio_conf="", v2__bin__="", opt__cni__bin__="")
    with pytest.raises(InvalidConfig) as caught:
        plugin_folder(root)
    assert all(word in caught.value.msg for word in ("--plugin-dir", "/v2/bin (containerd)", "/opt/cni/bin (CRI-O)"))
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
    with pytest.raises(InvalidConfig, match=r"config.toml is not TOML.*--plugin-dir"):
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
