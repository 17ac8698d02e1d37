"""The pages: their examples are read by the real readers, and their links lead somewhere."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from polar.cli.commands import COMMANDS
from polar.config import RunConfig, SftConfig, parse_config
from polar.evaluators import check_tasks
from polar.tasks import read_tasks
from polar.train import StepMetrics
from polar.train.figures import RolloutFigures
from polar.train.pace import Pace
from polar.train.staleness import Staleness

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_tasks_of_the_tutorial_are_tasks(tmp_path):
    (text,) = blocks("docs/tutorial.md", "json")
    (tmp_path / "tasks.jsonl").write_text(text)

    tasks = read_tasks(tmp_path / "tasks.jsonl")

    check_tasks(tasks)
    assert len(tasks) == 2


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/configuration.md"])
def test_the_configs_of_the_pages_are_configs(page):
    for text in blocks(page, "yaml"):
        loaded = yaml.safe_load(text.replace("1e-5", "1.0e-5"))
        assert parse_config(loaded, RunConfig, where=page).model == "smollm2-135m"


def test_the_configs_of_the_training_page_are_configs_of_runs_or_of_fine_tuning():
    texts = [yaml.safe_load(text) for text in blocks("docs/training.md", "yaml")]
    for loaded in texts:
        parse_config(loaded, SftConfig if "sft" in loaded else RunConfig, where="docs/training.md")
    assert sum("sft" in loaded for loaded in texts) == 1


def test_the_commands_of_the_training_page_have_the_flags_they_are_given():
    for line in "".join(blocks("docs/training.md", "bash")).splitlines():
        program, command, *arguments = line.split()
        assert program == "polar"
        told = inspect.getsource(COMMANDS[command].load())
        for flag in (a for a in arguments if a.startswith("--")):
            name = flag.removeprefix("--").replace("-", "_")
            assert name in told or flag in told, line


def test_every_metric_of_a_step_is_explained():
    page = (ROOT / "docs/training.md").read_text()
    named = set(re.findall(r"`(\w+)`", page.split("## Reading the metrics")[1]))
    plain = {"weight_version", "optimizer_steps", "groups", "trained_tokens", "phase", "step"}
    plain |= {"sessions", "calls", "per_request_tokens", "unique_tokens", "spent_s"}
    for declared in (StepMetrics, RolloutFigures, Staleness, Pace):
        assert {f.name for f in fields(declared)} <= named | plain, declared


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/tasks.md"])
def test_the_python_of_the_pages_is_python(page):
    for text in blocks(page, "python"):
        compile(text, page, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_test_that_the_page_of_faults_names_exists():
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")]
    found = {
        name
        for source in sources
        for name in re.findall(r"^(?:async )?def (test_\w+)", source, re.M)
    }
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 120
    assert named <= found, sorted(named - found)


def test_every_fault_on_the_page_has_a_test():
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    faults = [row for row in rows if not row.endswith("| tests |")]
    assert len(faults) >= 65
    assert all("`test_" in row.rsplit("| ", 1)[1] for row in faults)
