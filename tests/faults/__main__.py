"""`make faults`: all of the sweep and of the power losses, or a part of it.

python -m tests.faults                      everything, each part with its table
python -m tests.faults sweep ...            the sweep alone; --help says how to choose
python -m tests.faults powerloss ...        the power losses alone
python -m tests.faults --store etcd         what depends on where the leases are kept, for one store: file, etcd, kubernetes
python -m tests.faults --sample K --jobs N  one in K points and disks of everything, N at a time
python -m tests.faults --every              also what cannot come out otherwise than before: hours
"""

from __future__ import annotations

import sys

from tests.faults import powerloss, sweep

PARTS = {"sweep": sweep.main, "powerloss": powerloss.main}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in PARTS:
        return PARTS[arguments[0]](arguments[1:])
    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return 0
    if "--store" in arguments:  # of the stores the file alone can be hurt by a power loss of this node
        return sweep.main(arguments)
    failed = 0
    for name, part in PARTS.items():
        print(f"--- {name}", flush=True)
        failed |= part(arguments)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
