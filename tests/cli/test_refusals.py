"""What pydantic refuses, in our words."""

from datetime import date

import pytest
import yaml

from cni.documents.refusals import shown


@pytest.mark.parametrize(
    ("text", "expected"), [("[1, a]", '[1, "a"]'), ("2026-11-22", '"2026-11-22"'), ("&x [*x]", "[[...]]")]
)
def test_a_value_is_shown_whatever_yaml_makes_of_it(text: str, expected: str) -> None:
    assert shown(yaml.safe_load(text)) == expected


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 1000)) < 200
    assert shown(date(2026, 1, 1)) == '"2026-01-01"'
