"""The pages: their examples are read by the real readers, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml

from polar.config import RunConfig, parse_config
from polar.evaluators import check_tasks
from polar.tasks import read_tasks

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
    assert len(named) > 70
    assert named <= found, sorted(named - found)


def test_every_fault_on_the_page_has_a_test():
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    faults = [row for row in rows if not row.endswith("| tests |")]
    assert len(faults) >= 50
    assert all("`test_" in row.rsplit("| ", 1)[1] for row in faults)
