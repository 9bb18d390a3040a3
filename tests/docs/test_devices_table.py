"""A test shows each row of the table in docs/devices.md: what becomes of each part of a device's state."""

from tests.blackbox import test_host_state
from tests.hosts import table
from tests.hosts.scenes import SCENES

FATES = ("given back", table.REFUSED, table.LOST, "stays")


def test_each_row_has_a_fate_and_a_scene_or_a_test_that_shows_it() -> None:
    assert all(fate in FATES for _, fate, _ in table.rows())
    assert set(test_host_state.SHOWN_BY) == {name for name, _, _ in table.rows()}
    scenes = {**SCENES, **test_host_state.KEPT, **test_host_state.TIED, **test_host_state.LOST}
    for name, shown_by in test_host_state.SHOWN_BY.items():
        for each in shown_by:
            known = each in scenes or hasattr(test_host_state, each)
            assert known or each.startswith("none: "), (name, each)
