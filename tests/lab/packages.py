"""What the lab needs and a machine seldom has: QEMU, kernels with RDMA and SR-IOV, perftest. Nothing is installed.

apt brings the packages from this machine's own sources into a folder of the lab, checked against Debian's keys, and they are
unpacked there: `tools` holds what runs, here and in the guests; each kernel lies in a folder of its own."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_SECONDS = 900
_MERGED = (
    "bin", "sbin", "lib", "lib64",
)  # links into /usr on every Debian since bookworm, directories in older packages  # fmt: skip

TOOLS = (
    "qemu-system-x86",  # igb, which has VFs, is in version 8 and later
    "kmod",
    "busybox-static",
    "perftest",  # ib_write_bw
    "rdmacm-utils",  # rping
    "ibverbs-utils",
    "ibverbs-providers",
    "iproute2",  # the command `rdma`
    "iputils-ping",
    "ethtool",
    "strace",
)


class Unavailable(Exception):
    """Something cannot be had here; the text says what, and what would help."""


@dataclass(frozen=True)
class Kernel:
    """A kernel package of a suite of Debian. `tested` is the package that the lab was tested with; when the mirror has
    it no longer, what the metapackage of the suite stands for is taken instead."""

    name: str
    suite: str
    tested: str
    about: str


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("stable", "bookworm", "linux-image-6.1.0-50-amd64", "Debian 12's own"),
        Kernel("new", "trixie-backports", "linux-image-7.2.12+deb13-amd64", "soft-RoCE in network namespaces"),
    )
}


class Apt:
    """apt with the suites `suites` of `mirror`, and lists and cache of its own in `folder`."""

    def __init__(self, folder: Path, mirror: str, suites: Sequence[str]) -> None:
        for part in ("lists/partial", "cache/archives/partial", "parts"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        source = f"Types: deb\nURIs: {mirror}\nSuites: {' '.join(suites)}\nComponents: main\nSigned-By: {_KEYS}\n"
        (folder / "parts" / "lab.sources").write_text(source)
        options = {
            "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": folder / "parts",
            "Dir::Etc::preferencesparts": "/dev/null", "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root", "Acquire::Languages": "none",
            "Acquire::Retries": 3,
        }  # fmt: skip
        self._options = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        self._suites = " ".join(suites)

    def update(self) -> None:
        """Unavailable: the mirror cannot be reached, or has no such suite."""
        said = self._run("apt-get", "update", "--error-on=any")
        if said.returncode:
            raise Unavailable(f"the suites {self._suites} cannot be read: {_last(said.stderr)}")

    def closure(self, names: Iterable[str], suite: str) -> list[str]:
        """NAME=VERSION of what an installation of `names`, by preference from `suite`, would add to this machine."""
        said = self._run("apt-get", "install", "-s", "--no-install-recommends", "--reinstall", "-t", suite, *names)
        if said.returncode:
            raise Unavailable(f"no {', '.join(names)} in {self._suites}: {_last(said.stderr or said.stdout)}")
        lines = [line.split() for line in said.stdout.splitlines() if line.startswith("Inst ")]
        return [f"{words[1]}={next(w for w in words[2:] if w.startswith('(')).lstrip('(')}" for words in lines]

    def has(self, name: str) -> bool:
        return self._run("apt-cache", "show", "--no-all-versions", name).returncode == 0

    def depends(self, name: str, prefix: str, beside: str = "") -> str:
        """The first dependency of `name` that begins with `prefix` and is not `beside`; "" for none."""
        said = self._run("apt-cache", "depends", name).stdout.split()
        return next((word for word in said if word.startswith(prefix) and word != beside), "")

    def unpack(self, packages: Sequence[str], debs: Path, target: Path) -> None:
        """Download `packages` and unpack them into `target`."""
        debs.mkdir(parents=True, exist_ok=True)
        said = self._run("apt-get", "download", *packages, cwd=debs)
        if said.returncode:
            raise Unavailable(f"download of {' '.join(packages)} failed: {_last(said.stderr)}")
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", deb, target], check=True)
        shutil.rmtree(debs)

    def _run(self, program: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = (
            [program, *self._options, "-qq", *words] if program == "apt-get" else [program, *self._options, *words]
        )
        env = os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=_SECONDS)


def tools(folder: Path) -> Path:
    """The folder of the programs, made when it is not there. Unavailable: what hinders."""
    target = folder / "tools"
    stamp = folder / "tools.ready"
    wanted = "\n".join(TOOLS)
    if stamp.exists() and stamp.read_text() == wanted:
        return target
    codename = _usable()
    _clear(target)
    suites = [codename, f"{codename}-updates", f"{codename}-backports"]
    apt = Apt(folder / "apt-tools", mirror(codename), suites)
    apt.update()
    apt.unpack(apt.closure(TOOLS, suites[-1]), folder / "debs", target)
    _merge(target)
    stamp.write_text(wanted)
    return target


def kernel(folder: Path, name: str) -> Path:
    """The folder into which the kernel `name` of KERNELS is unpacked, made when it is not there. Unavailable: why not."""
    chosen = KERNELS[name]
    target = folder / "kernels" / name
    stamp = target / "ready"
    if stamp.exists() and stamp.read_text().startswith(f"{chosen.tested} "):
        return target
    codename = _usable()
    _clear(target)
    apt = Apt(folder / f"apt-{chosen.suite}", mirror(codename), [chosen.suite])
    apt.update()
    package = chosen.tested if apt.has(chosen.tested) else apt.depends("linux-image-amd64", "linux-image-")
    if not package:
        raise Unavailable(f"no kernel in {chosen.suite}")
    parts = [
        apt.depends(package, prefix) for prefix in ("linux-base-", "linux-binary-", "linux-modules-")
    ]  # since Linux 7
    apt.unpack([package, *filter(None, parts)], folder / "debs", target)
    _merge(target)
    stamp.write_text(f"{chosen.tested} {package}")
    return target


def headers(folder: Path, name: str, release: str) -> Path:
    """The folder in which modules for the kernel `name` of KERNELS, of `release`, are built. Unavailable: why not."""
    target = folder / "headers" / name
    made = target / "usr" / "src" / f"linux-headers-{release}"
    stamp = target / "ready"
    if stamp.exists() and stamp.read_text() == release:
        return made
    chosen = KERNELS[name]
    codename = _usable()
    _clear(target)
    apt = Apt(folder / f"apt-{chosen.suite}", mirror(codename), [chosen.suite])
    package = f"linux-headers-{release}"
    more = [found for prefix in ("linux-headers-", "linux-kbuild-") if (found := apt.depends(package, prefix, package))]
    apt.unpack([package, *more], folder / "debs", target)
    for path in [made / "Makefile", *target.glob("usr/src/*-common/Makefile")]:
        path.write_text(path.read_text().replace("/usr/src/", f"{target}/usr/src/"))  # as if it were installed
    stamp.write_text(release)
    return made


def mirror(codename: str) -> str:
    """The mirror of Debian that this machine's sources name for its own release."""
    form = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)"]
    said = subprocess.run(form, capture_output=True, text=True)
    found = [line.split() for line in said.stdout.splitlines()]
    named = [words[0] for words in found if words[1:] in ([codename, "main"], ["stable", "main"])]
    return next((site for site in named if "security" not in site), _MIRROR)


def _usable() -> str:
    """The code name of this Debian. Unavailable: it is none, or another architecture."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if not shutil.which(tool)]
    if missing or not _KEYS.exists():
        raise Unavailable(f"needs Debian: {', '.join(missing) or _KEYS} is not here")
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guests are x86_64, and this machine is {platform.machine()}")
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    name = release.get("VERSION_CODENAME", "").strip('"')
    if release.get("ID", "").strip('"') != "debian" or not name:
        raise Unavailable(f"needs a release of Debian: this is {release.get('PRETTY_NAME', 'another system')}")
    return name


def _merge(target: Path) -> None:
    """Move what packages put into /bin, /sbin and /lib below /usr, where links lead to: laid over a file system, a
    directory there would hide the link and all that is behind it."""
    for name in _MERGED:
        source = target / name
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(source)


def _clear(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)


def _last(text: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no reason given")
