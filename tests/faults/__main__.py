"""`make faults`: all of the sweep and of the power losses, or a part of it.

python -m tests.faults                      everything, each part with its table
python -m tests.faults sweep ...            the sweep alone; --help says how to choose
python -m tests.faults powerloss ...        the power losses alone
python -m tests.faults --store etcd         of the sweep one store alone: file, etcd, kubernetes, addresslease; may be repeated
python -m tests.faults --sample K --jobs N  one in K points and disks of everything, N at a time
RAILCNI_TEST_WARM=1 python -m ...           the calls are served by warm workers, at which strace is put
python -m tests.faults --every              also what cannot come out otherwise than before: hours
"""

import argparse
import sys

from tests.faults import powerloss, sweep

PARTS = {"sweep": sweep.main, "powerloss": powerloss.main}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in PARTS:
        return PARTS[arguments[0]](arguments[1:])
    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return 0
    parser = argparse.ArgumentParser(prog="faults")
    parser.add_argument("--store", action="append")
    chosen, rest = parser.parse_known_args(arguments)
    print("--- sweep", flush=True)
    failed = sweep.main(arguments)
    if "file" in (chosen.store or ["file"]):  # the other stores keep nothing on this node that a power loss could hurt
        print("--- powerloss", flush=True)
        failed |= powerloss.main(rest)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
