"""The workflows call what the repository has, and each action by its commit."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni import VERSION
from tests.node import ROOT
from tests.tools import run

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text())["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [job])]  # a job without steps calls a workflow


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_each_script_target_and_workflow_that_is_called_is_there(file: Path) -> None:
    text = "\n".join(step.get("run", "") for step in steps(file))
    called = set(re.findall(r"\.ci/[\w.]+", text)) | {
        s["uses"] for s in steps(file) if s.get("uses", "").startswith("./")
    }
    assert called and not [path for path in called if not (ROOT / path).is_file()]
    assert set(re.findall(r"(?:^|&& )make ([a-z]+)\b", text, re.M)) <= TARGETS


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_each_action_is_named_by_its_commit_with_the_version_beside_it(file: Path) -> None:
    foreign = re.findall(r"uses: ((?!\./).*)", file.read_text())
    assert foreign and not [one for one in foreign if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)]


@pytest.mark.parametrize(("tag", "said"), [
    ("v99.0.0", f"the tag is v99.0.0, and pyproject.toml has the version {VERSION}"),
    (f"v{VERSION}", "and this is https://git.example/a/b"),
])  # fmt: skip
def test_a_tag_of_another_version_or_repository_is_not_published(tag: str, said: str) -> None:
    given = {"REF_NAME": tag, "SERVER_URL": "https://git.example", "REPOSITORY": "a/b", "ACTOR": "a"}
    variables = [f"GITHUB_{name}={value}" for name, value in given.items()]
    done = run("env", "-C", str(ROOT), "GH_TOKEN=x", *variables, "sh", ".ci/publish")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
