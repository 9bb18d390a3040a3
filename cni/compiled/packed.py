"""The first Python code of an executable: import modules from the pack, the file of compiled modules (see pack.py).

The launcher (bin/launcher.in) defines three globals and calls `main`. `root` is the directory of the project. `pack` is
the file descriptor of the pack. `index` maps the name of each module to three values: whether the module is a package,
and the offset and the size of its code, in bytes.

A warm worker is a process that waits for calls (cni/warm). If the launcher found no worker, the first argument
identifies the launcher, and this process starts a supervisor of workers after the call. If there is a second argument,
the descriptor of a lock, this process itself becomes the supervisor.

An import from a directory costs 0.1 ms, mostly for a dozen system calls. An import from the pack costs 0.06 ms, which
saves 2 ms for the 47 modules of a CHECK.
"""

import gc
import marshal
import os
import sys
from importlib.machinery import ModuleSpec

root: str
pack: int
index: dict[str, tuple[bool, int, int]]


class Pack:
    """The importlib finder and loader of the modules in the pack (PEP 451)."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in index:
            return None
        spec = ModuleSpec(name, Pack, is_package=index[name][0])  # type: ignore[arg-type]  # it has a loader's methods
        if index[name][0]:
            spec.submodule_search_locations = [f"{root}/{name.replace('.', '/')}"]
        return spec

    @staticmethod
    def create_module(spec):  # type: ignore[no-untyped-def]
        return None  # importlib makes an ordinary module

    @staticmethod
    def exec_module(module):  # type: ignore[no-untyped-def]
        _, place, size = index[module.__name__]
        exec(marshal.loads(os.pread(pack, size, place)), module.__dict__)


gc.disable()  # saves 0.4 ms; the process ends after a few ms, which frees its memory
sys.meta_path.insert(0, Pack)


def main(plugin):  # type: ignore[no-untyped-def]
    arguments = sys.argv[1:]
    if arguments and arguments[0].partition("-")[0] != os.pread(pack, 32, 12256).decode():
        arguments = []  # the executable is of another version than the modules
    if len(arguments) > 1:
        from cni.warm import supervisor  # most calls need only one of the three imports

        supervisor.main(arguments[0], int(arguments[1]), f"{root}/bin/modules.{sys.implementation.cache_tag}", index)
    for name in [name for name in os.environb if name.startswith(b"!D_")]:
        os.environb[b"L" + name[1:]] = os.environb.pop(name)  # the launcher hid LD_* from the dynamic linker
    from cni import link  # most calls need only one of the three imports

    status = link.main(plugin)
    if arguments and status == 0:
        from cni.warm import start  # most calls need only one of the three imports

        start.supervisor(sys.argv[0], arguments[0])
    os._exit(status)  # nothing is left to do: finalizing the interpreter costs 2 ms
