"""What a launcher runs first: imports from the pack of compiled modules that `make` wrote (cni/pack.py).

The launcher gives it `root`, the directory of the project, `pack`, the open file, and `index`: for each module whether
it is a package, and the place and size of its code. Then `main` is there for the launcher to call.

An import from a directory costs 0.1 ms, most of it a dozen system calls; from the pack the half of that. With the
modules of an ADD that saves 2 ms of an exec, about a tenth.
"""

import gc
import marshal
import posix
import sys

root: str
pack: int
index: dict[str, tuple[bool, int, int]]

ModuleSpec = type(sys.__spec__)  # whose module costs an import


class Packed:
    """Finder and loader (PEP 451) of the modules in the pack."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        """The spec of a module in the pack; None leaves the others to the interpreter's own finders."""
        if name not in index:
            return None
        spec = ModuleSpec(name, Packed, is_package=index[name][0])  # type: ignore[arg-type]
        if index[name][0]:
            spec.submodule_search_locations = [f"{root}/{name.replace('.', '/')}"]
        return spec

    @staticmethod
    def create_module(spec):  # type: ignore[no-untyped-def]
        """None: a plain module will do."""

    @staticmethod
    def exec_module(module):  # type: ignore[no-untyped-def]
        """Run the module's code in it."""
        _, place, size = index[module.__name__]
        exec(marshal.loads(posix.pread(pack, size, place)), module.__dict__)


gc.disable()  # a process of a few ms that frees its memory by ending; saves 0.4 ms
sys.meta_path.insert(0, Packed)

from cni.run import main  # noqa: E402, F401
