"""The command in this process, whose imports are paid for once."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from cni.cli.ipam import audit as ipam_audit
from cni.cli.main import main


def run(*argv: str, code: int | None = 0, data: bool = False) -> Any:
    """As `run_any`, of `railcni ipam ARGV`."""
    return run_any("ipam", *argv, code=code, data=data)


def run_any(*argv: str, code: int | None = 0, data: bool = False) -> Any:
    """What `railcni ARGV` says on stdout and then on stderr; with `data` what its JSON holds.

    AssertionError for another exit code than `code`, None for any. The looks of an audit follow at once.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["railcni", *argv, *(("-o", "json") if data else ())])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(ipam_audit, "PAUSE", 0)
        try:
            status = main()
        except SystemExit as end:
            status = int(end.code or 0)
    said = f"{status}: {out.getvalue()}{err.getvalue()}"
    assert code in (None, status) and "a fault of railcni itself" not in said, said
    return json.loads(out.getvalue()) if data else out.getvalue() + err.getvalue()
