"""docs/devices.md shows the table in the code of what a device of the host has, and a test shows each row.

`python -m tests.unit.test_devices_table` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from cni.plugins.host_device.hoststate import LOST, REFUSED, SAVED, STAYS, TABLE
from tests.blackbox import test_host_device, test_host_state

DOCUMENT = Path(__file__).parents[2] / "docs/devices.md"
BEGIN = "<!-- table: tests/unit/test_devices_table.py compares it with the table in the code -->\n"
END = "<!-- end of table -->\n"
WORDS = (SAVED, REFUSED, LOST, STAYS)


def table() -> str:
    rows = [f"| {name} | {fate} | {remark} |\n" for name, fate, remark in TABLE]
    return "\n| what the device has | fate | remark |\n|---|---|---|\n" + "".join(rows) + "\n"


def split(text: str) -> tuple[str, str, str]:
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def test_the_document_shows_the_table_of_the_code() -> None:
    assert split(DOCUMENT.read_text())[1] == table(), "write it anew: python -m tests.unit.test_devices_table"


def test_each_row_has_a_fate_and_a_scene_or_a_test_that_shows_it() -> None:
    assert all(fate in WORDS for _, fate, _ in TABLE)
    assert set(test_host_state.SHOWN_BY) == {name for name, _, _ in TABLE}
    scenes = {**test_host_state.ROUTING, **test_host_state.LINK, **test_host_state.TIED, **test_host_state.LOST}
    for name, shown_by in test_host_state.SHOWN_BY.items():
        for each in shown_by:
            known = each in scenes or hasattr(test_host_state, each) or hasattr(test_host_device, each)
            assert known or each.startswith("none: "), (name, each)


if __name__ == "__main__":
    before, _, after = split(DOCUMENT.read_text())
    DOCUMENT.write_text(before + BEGIN + table() + END + after)
