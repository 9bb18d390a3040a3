"""What a launcher runs first: imports from the pack of compiled modules that `make` wrote (cni/pack.py).

The launcher gives it `root`, the directory of the project, `pack`, the open file, and `index`: for each module whether
it is a package, and the place and size of its code. Then `main` is there for the launcher to call.

An import from a directory costs 0.1 ms, most of it a dozen system calls; from the pack by a finder of importlib's
(PEP 451) 0.06 ms; by the `__import__` below 0.05 ms. Of the 48 modules of a CHECK that saves 2.5 ms.
"""

import builtins
import gc
import marshal
import posix
import sys

root: str
pack: int
index: dict[str, tuple[bool, int, int]]

modules = sys.modules
importlib_import = builtins.__import__
Module = type(sys)


def packed_import(name, globals=None, locals=None, fromlist=(), level=0):  # type: ignore[no-untyped-def]
    """Import `name`, and what of `fromlist` are modules, from the pack; what is not in there, as Python does it."""
    if name in index:
        if name not in modules:
            load(name)
        if fromlist:
            if index[name][0]:
                for each in fromlist:
                    each = f"{name}.{each}"
                    if each in index and each not in modules:
                        load(each)
            return modules[name]
    return importlib_import(name, globals, locals, fromlist, level)


def load(name: str) -> None:
    """Run the code of the module `name`, after its package's, in a module that others find from now on."""
    package, _, last = name.rpartition(".")
    if package and package not in modules:
        load(package)
    is_package, place, size = index[name]
    module = modules[name] = Module(name)
    if is_package:
        module.__path__ = [f"{root}/{name.replace('.', '/')}"]
    try:
        exec(marshal.loads(posix.pread(pack, size, place)), module.__dict__)
    except BaseException:
        del modules[name]
        raise
    if package:
        setattr(modules[package], last, module)


gc.disable()  # a process of a few ms that frees its memory by ending; saves 0.4 ms
builtins.__import__ = packed_import

from cni.run import main  # noqa: E402, F401
