"""The soak tells what is flat from what grows; and a short one runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import tree
from tests.faults.churn.checker import check
from tests.faults.churn.events import parse
from tests.faults.churn.run import Churn
from tests.faults.churn.sampling import LIMITS, Sample, growth
from tests.faults.soak import Soak
from tests.faults.test_histories import ANSWERED_BEFORE_GONE
from tests.node import unusable

USUAL = Sample(0, 0, 60, 30, 65, 5, 20, 36864, 110_000, 45, 60)


def samples(count: int = 30, **rises: float) -> list[Sample]:
    """As many samples that go up and down a little, and in some values up by so much a sample."""
    found = []
    for i in range(count):
        wave = replace(USUAL, seconds=i, calls=40 * i, leases=USUAL.leases + i % 4, links=USUAL.links - i % 3)
        found.append(replace(wave, **{name: getattr(wave, name) + int(i * rise) for name, rise in rises.items()}))
    return found


def test_what_goes_up_and_down_is_flat() -> None:
    assert growth(samples()) == []


@pytest.mark.parametrize("name", LIMITS)
def test_what_grows_is_named(name: str) -> None:
    rise = LIMITS[name](getattr(USUAL, name)) or 0.3
    faults = growth(samples(30, **{name: rise}))
    assert len(faults) == 1
    assert faults[0].startswith(f"{name} grew from")


def test_a_store_that_leaves_a_lease_at_each_sample_grows() -> None:
    assert growth(samples(120, leases=1, records=1))


def test_few_samples_tell_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth(samples(5))


@pytest.mark.long
@pytest.mark.skipif(bool(unusable()), reason=unusable())
def test_a_soak_judges_each_stretch_and_ends_with_nothing_left(executables: Path, tmp_path: Path) -> None:
    with Churn(tree.copy(tmp_path), seed=3, workers=2, pods=4) as churn:
        soak = Soak(churn, tmp_path / "kept")
        for _ in range(3):
            soak.step(1.0)
        soak.end()
    assert soak.faults == []
    assert len((tmp_path / "kept" / "samples").read_text().splitlines()) == 3
    assert not (tmp_path / "kept" / "faults").exists()
    assert [sample.files for sample in soak.samples[1:]] == [soak.samples[0].files] * 2
    assert soak.samples[-1].calls > 10
    assert any(sample.leases and sample.links and sample.records for sample in soak.samples)


@pytest.mark.long
@pytest.mark.skipif(bool(unusable()), reason=unusable())
def test_the_history_of_a_fault_is_kept(executables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Churn(tree.copy(tmp_path, ANSWERED_BEFORE_GONE), seed=4, workers=2, pods=4) as churn:
        soak = Soak(churn, tmp_path / "kept")
        while not soak.faults and len(soak.samples) < 20:
            soak.step(1.0)
    fault = next(fault for fault in soak.faults if "its DEL was answered" in fault)
    assert f"FAULT {fault}" in capsys.readouterr().out
    assert f": {fault}\n" in (tmp_path / "kept" / "faults").read_text()
    (history,) = (tmp_path / "kept").glob("history-*")
    assert fault in check(parse(history.read_text().splitlines()))
