"""A guest: one boot of a kernel in QEMU, for one command, whose output and files come back.

It has no way out: no network but what a machine asks for, which is restricted to itself; it ends with this process.
"""

import os
import resource
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import initrd

_PROBE_SECONDS = 20
_FIRST_SECONDS = 180  # until the guest's command begins
_DEADLY = ("Kernel panic", "BUG:", "Oops:", "general protection fault", "Call Trace:")


@dataclass(frozen=True)
class Ended:
    """How a guest ended: the exit status of its command, or None with what happened instead; how long it took, and how
    long a processor was busy with it, which is the same on a machine that others use too."""

    status: int | None
    why: str
    seconds: float
    busy: float


def accelerator(tools: Path, kernel: Path) -> str:
    """ "kvm" where a guest really comes up with it, else "tcg", which is emulation. Found out once a boot of this
    machine: there are machines with a /dev/kvm on which a guest stops at its first instructions."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    known = tools.parent / "accelerator"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if not known.exists() or not known.read_text().startswith(boot):
        known.write_text(f"{boot} {'kvm' if _comes_up(tools, kernel) else 'tcg'}")
    return known.read_text().split()[1]


def _comes_up(tools: Path, kernel: Path) -> bool:
    probe = [*_machine(tools, kernel, "kvm"), "-append", "console=ttyS0 panic=-1 lab.probe=1"]
    try:
        said = subprocess.run(
            probe, env=_environ(tools), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return b"lab: up" in said.stdout


def run(
    tools: Path,
    kernel: Path,
    command: Sequence[str],
    out: Path,
    *,
    environ: Mapping[str, str] | None = None,
    qemu: Sequence[str] = (),
    append: str = "",
    before: str = "",
    quiet_seconds: float,
    look: Callable[[], bool] = lambda: False,
) -> Ended:
    """Boot `kernel` and run `command` in it, after the shell lines `before`; `out` is the guest's /out. `look` says twice a
    second whether there was progress; without any for `quiet_seconds` the guest counts as hanging, and is ended.
    """
    _ask(out, command, environ or {}, before)
    console = out / "console"
    began = moved = time.monotonic()
    used = _used()
    with console.open("wb") as log:
        arguments = _arguments(tools, kernel, out, qemu, append)
        holder = ["setpriv", "--pdeathsig", "KILL", "--", *arguments]
        process = subprocess.Popen(holder, env=_environ(tools), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        size, hangs = 0, False
        try:
            while process.poll() is None and not hangs:
                time.sleep(0.5)
                now = time.monotonic()
                grown = console.stat().st_size
                if look() or grown != size:
                    size, moved = grown, now
                hangs = now - moved > (quiet_seconds if (out / "began").exists() else _FIRST_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    look()
    seconds, busy = time.monotonic() - began, _used() - used
    status = out / "status"
    if status.exists() and status.read_text().strip():
        return Ended(int(status.read_text()), "", seconds, busy)
    said = console.read_text(errors="replace").splitlines()
    deadly = next((line.strip() for line in said if any(word in line for word in _DEADLY)), "")
    last = deadly or next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
    return Ended(None, f"{'hung' if hangs else 'died'}: {last[-200:]}", seconds, busy)


def _ask(out: Path, command: Sequence[str], environ: Mapping[str, str], before: str) -> None:
    """The folder that the guest will have, with what it is to do and nothing else."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]
    lines += ["touch /out/began", before, f"cd {shlex.quote(os.getcwd())}", shlex.join(command)]
    (out / "command").write_text("\n".join(lines) + "\n")


def _arguments(tools: Path, kernel: Path, out: Path, more: Sequence[str], append: str) -> list[str]:
    shares: list[str] = []
    for name, path, readonly in (("root", Path("/"), True), ("tools", tools, True), ("out", out, False)):
        fs = f"local,id={name},path={path},security_model=none,multidevs=remap"
        shares += ["-fsdev", fs + (",readonly=on" if readonly else "")]
        shares += ["-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
    words = [
        *("console=ttyS0", "quiet", "panic=-1", "oops=panic", append),
        *(f"lab.release={initrd.release(kernel)}", f"lab.modules={initrd.modules(kernel).resolve()}"),
    ]
    accel = accelerator(tools, kernel)
    return [*_machine(tools, kernel, accel), *shares, "-append", " ".join(word for word in words if word), *more]


def _machine(tools: Path, kernel: Path, accel: str) -> list[str]:
    """One processor: emulated, two panic now and then."""
    data = [tools / "usr" / "share" / name for name in ("qemu", "seabios")]
    return [
        *(str(tools / "usr" / "bin" / "qemu-system-x86_64"), *(word for path in data for word in ("-L", str(path)))),
        *("-M", "q35,kernel-irqchip=split" if accel == "kvm" else "q35"),
        *("-accel", accel, "-cpu", "host" if accel == "kvm" else "max", "-smp", "1", "-m", "1024"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"),
        *("-kernel", str(initrd.image(kernel)), "-initrd", str(initrd.make(kernel, tools))),
    ]


def _used() -> float:
    """Seconds of processors that children of this process have used which have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def _environ(tools: Path) -> dict[str, str]:
    libraries = tools / "usr" / "lib" / "x86_64-linux-gnu"
    return os.environ | {"LD_LIBRARY_PATH": str(libraries), "QEMU_MODULE_DIR": str(libraries / "qemu")}
