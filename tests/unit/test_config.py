"""The config of a run: strict, told all at once, read back as it was written."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from polar import engines, harnesses, runtimes
from polar.config import (
    Environment,
    RunConfig,
    environment,
    load_config,
    parse_config,
    write_config,
)
from polar.config.documents import parse_value
from polar.config.families import implementation_names, settings_model
from polar.config.reference import field_docs, reference, run_reference
from polar.errors import ConfigError
from polar.harnesses.settings import PiSettings, ShellSettings

ROOT = Path(__file__).parents[2]


class Tuning(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    lr: float = 1e-6
    """How far | a step goes,
    and no further."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay."""
    folder: Path | None = None
    """Where."""


def refusal(*overrides: str, path: Path | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides, RunConfig)
    return str(refused.value)


def written(tmp_path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_without_a_file_everything_has_its_default():
    config = load_config(None, (), RunConfig)

    assert config.model == "smollm2-135m"
    assert config.harness.name == "mini_swe_agent"
    assert config.engine.name == "embedded"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.yaml", "seed: 7\ntrain:\n  lr: 1e-5\n  betas: [0.8, 0.9]\n"),
        ("run.toml", "seed = 7\n[train]\nlr = 1e-5\nbetas = [0.8, 0.9]\n"),
        ("run.json", '{"seed": 7, "train": {"lr": 1e-5, "betas": [0.8, 0.9]}}'),
    ],
)
def test_yaml_toml_and_json_say_the_same(tmp_path, name, text):
    config = load_config(written(tmp_path, name, text), (), RunConfig)

    assert (config.seed, config.train.lr, config.train.betas) == (7, 1e-5, (0.8, 0.9))


def test_an_override_wins_over_the_file(tmp_path):
    path = written(tmp_path, "run.yaml", "train: {lr: 1e-5}\nseed: 1\n")

    config = load_config(path, ["train.lr=3e-6", "loop.warm_start.sessions=8"], RunConfig)

    assert (config.train.lr, config.seed, config.loop.warm_start.sessions) == (3e-6, 1, 8)


def test_overrides_leave_the_data_they_are_applied_to_alone():
    data = {"train": {"lr": 1e-5}}

    parse_config(data, RunConfig, where="a test", overrides=["train.lr=1"])

    assert data == {"train": {"lr": 1e-5}}


def test_the_settings_of_a_section_are_those_of_what_it_names():
    pi = load_config(None, ["harness.name=pi", "harness.settings.max_tokens=9"], RunConfig)
    shell = load_config(None, ["harness.name=shell", "harness.settings.command=x"], RunConfig)

    assert pi.harness.settings == PiSettings(max_tokens=9, cache=environment().cache)
    assert shell.harness.settings == ShellSettings(command="x")


def test_an_unknown_key_is_told_with_its_file_and_the_nearest_one(tmp_path):
    path = written(tmp_path, "run.yaml", "train: {lrr: 1e-5}\n")

    told = refusal(path=path)

    assert str(path) in told
    assert "`train.lrr`" in told
    assert "Did you mean `lr`?" in told


def test_an_unknown_key_of_a_harness_is_told_with_the_nearest_one():
    told = refusal("harness.settings.step_limt=4")

    assert "`harness.settings.step_limt`" in told
    assert "Did you mean `step_limit`?" in told


def test_a_wrong_type_is_told_with_what_is_there_and_what_should_be():
    told = refusal("train.lr=fast")

    assert "`train.lr` is 'fast'" in told
    assert "valid number" in told


def test_all_problems_are_told_at_once():
    told = refusal("train.lrr=1", "seed=x", "harness.settings.step_limt=1", "loop.steps=-1")

    assert "4 settings are wrong" in told
    for key in ("train.lrr", "seed", "harness.settings.step_limt", "loop.steps"):
        assert f"`{key}`" in told


def test_a_needed_setting_that_is_missing_is_named():
    assert "`harness.settings.command` is missing" in refusal("harness.name=shell")


@pytest.mark.parametrize("section", ["engine", "harness", "runtime"])
def test_an_unknown_implementation_is_told_with_the_file(tmp_path, section):
    path = written(tmp_path, "run.yaml", f"{section}: {{name: nothing}}\n")

    told = refusal(path=path)

    assert "nothing" in told
    assert str(path) in told


@pytest.mark.parametrize("override", ["train", "=1", "train.=1", ".lr=1", "seed.x=1"])
def test_an_override_that_sets_nothing_is_refused(override):
    assert "seed: 1" not in refusal("seed=1", override)


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["train.lr=fast"], "--set train.lr=fast"),
        (["seed=1", "train={lr: fast}"], "--set train={lr: fast}"),
        (["train.lr=1", "train.lr=fast"], "--set train.lr=fast"),
        (["train.nothing=1"], "--set train.nothing=1"),
        (["train.betas=[0.9, b]", "train.clip_low=0.1"], "--set train.betas=[0.9, b]"),
        (["train.lr=.inf"], "--set train.lr=.inf"),
        (["harness.name=nothing"], "--set harness.name=nothing"),
        (["train.temperature=0.5", "seed=1"], "{file} with --set train.temperature=0.5"),
        (
            ["train.temperature=0.5", "rollout.temperature=0.7"],
            "--set train.temperature=0.5 --set rollout.temperature=0.7",
        ),
        (["train.discount=0.9", "seed=1"], "{file} with --set train.discount=0.9"),
        (["rollout.discount=high"], "--set rollout.discount=high"),
        (["seed.x=1"], "--set seed.x=1"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_at_the_override_that_it_is_from(tmp_path, overrides, where):
    path = written(tmp_path, "run.yaml", "seed: 3\nloop: {steps: 2}\n")

    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides, RunConfig)

    assert refused.value.where == where.replace("{file}", str(path))


@pytest.mark.parametrize("overrides", [["train.lr=1e-5"], ["train.lr=fast", "train.lr=1e-5"]])
def test_a_wrong_setting_of_the_file_is_at_the_file_whatever_else_is_set(tmp_path, overrides):
    path = written(tmp_path, "run.yaml", "train: {betas: high}\n")

    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides, RunConfig)

    assert refused.value.where == str(path)


def test_wrong_settings_of_several_places_are_each_told_with_its_own(tmp_path):
    path = written(tmp_path, "run.yaml", "train: {betas: high}\n")

    told = refusal("train.lr=fast", path=path)

    assert f"2 settings are wrong (at --set train.lr=fast, {path})" in told
    assert "valid number. (at --set train.lr=fast)" in told
    assert told.endswith(f"(at {path})")


def test_a_long_override_is_cut_where_it_is_told():
    told = refusal(f"train.lr={'x' * 500}")

    assert "--set train.lr=xxx" in told
    assert len(told) < 250


def test_another_distribution_than_the_sampled_one_cannot_be_trained_on():
    assert "`rollout.temperature` is 1.0" in refusal("train.temperature=0.7")
    assert "`rollout.top_k` is 20" in refusal("rollout.top_k=20")


@pytest.mark.parametrize("wrong", ["0", "-1", "some"])
def test_a_number_of_likeliest_tokens_is_at_least_one_or_all_of_them(wrong):
    told = refusal(f"rollout.top_k={wrong}")
    assert f"`rollout.top_k` is {wrong}" in told.replace("'some'", "some")
    assert ", or it should be 'all'." in told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("run.yaml", "seed: [1", "run.yaml:1"),
        ("run.yaml", "seed: 1\nseed: 2\n", "there twice"),
        ("run.yaml", "- 1\n", "not an object"),
        ("run.toml", "seed =", "not valid TOML"),
        ("run.json", "{", "not valid JSON"),
        ("run.ini", "", "not in '.ini'"),
        ("run.json", '{"seed": 1, "seed": 2}', "there twice"),
        ("run.json", "[" * 100_000, "nested too deeply"),
        ("run.yaml", "[" * 5_000, "nested too deeply"),
        ("run.toml", "a = " + "[" * 100_000, "nested too deeply"),
        ("run.yaml", "seed: &a [*a]", "holds itself"),
        ("run.yaml", "? [a]\n: 1\n", "not a name"),
        ("run.yaml", "? {a: 1}\n: 1\n", "not a name"),
        (
            "run.yaml",
            "a: &a [1, 2]\nb: &b [*a, *a]\n" + "c: [" + "*b, " * 50_000 + "]",
            "more than",
        ),
        ("run.yaml", "train: {lr: .inf}", "`train.lr` is inf"),
        ("run.toml", "[train]\nlr = nan", "`train.lr` is nan"),
        ("run.json", '{"train": {"lr": [1e999]}}', "`train.lr[0]` is inf"),
        ("run.json", '{"model": "\\ud800"}', "`model` has half a surrogate pair"),
        ("run.json", '{"\\ud800": 1}', "half a surrogate pair"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_broken_file_is_one_clear_error(tmp_path, name, text, told):
    assert told in refusal(path=written(tmp_path, name, text))


@pytest.mark.parametrize("depth", [50, 200, 400, 800, 990])
@pytest.mark.parametrize("name", ["run.json", "run.yaml"])
def test_a_file_of_any_depth_is_refused_and_does_not_end_the_program(tmp_path, name, depth):
    refusal(path=written(tmp_path, name, '{"model": ' + "[" * depth + "]" * depth + "}"))


def test_a_file_that_is_not_utf_8_is_told_with_the_byte(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"model: \xff\n")
    assert "not UTF-8 at byte 8" in refusal(path=path)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path):
    for name, text in (
        ("run.json", '{"seed": 3}'),
        ("run.yaml", "seed: 3"),
        ("a.toml", "seed = 3"),
    ):
        path = written(tmp_path, name, "\ufeff" + text)
        assert load_config(path, (), RunConfig).seed == 3


@pytest.mark.parametrize("value", ["[" * 5_000, "&a [*a]", "{base_url", "1" * 5_000])
def test_an_override_that_is_no_value_is_refused_with_what_to_write(value):
    with pytest.raises(ConfigError) as raised:
        load_config(None, [f"model={value}"], RunConfig)
    assert raised.value.where == "--set"


def test_a_missing_file_is_one_clear_error(tmp_path):
    assert "no such config file" in refusal(path=tmp_path / "run.yaml")


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load_config(written(tmp_path, "run.yaml", ""), (), RunConfig).seed == 0


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_values_are_read_as_json_writes_them(value):
    assert parse_value(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 1e-5), ("-2E3", -2000.0), ("1.5e+2", 150.0), ("2026-01-02", "2026-01-02")],
)
def test_numbers_with_an_exponent_are_numbers_and_dates_are_text(text, value):
    assert parse_value(text) == value


def test_credit_by_step_without_anything_that_makes_it_differ_is_refused():
    assert "nothing scores them" in refusal("train.credit=steps")
    load_config(None, ["train.credit=steps", "train.discount=0.9"], RunConfig)
    load_config(None, ["train.credit=steps", "gateway.scorer={command: [score]}"], RunConfig)


def test_a_discount_of_outcomes_is_refused():
    assert "discount needs credit: steps" in refusal("train.discount=0.9")


def test_a_control_whose_scores_would_still_teach_is_refused():
    told = refusal("train.credit=steps", "train.discount=0.9", "loop.shuffled_rewards=true")
    assert "scores would still tell" in told


def test_a_written_config_is_read_back_equal(tmp_path):
    overrides = ["harness.name=pi", "train.lora={rank: 4}", "engine.name=vllm", "loop.minutes=3"]
    config = load_config(None, overrides, RunConfig)

    write_config(tmp_path / "config.yaml", config)

    again = load_config(tmp_path / "config.yaml", (), RunConfig)
    assert again.model_dump() == config.model_dump()


def test_a_written_config_which_may_hold_a_key_can_be_read_by_its_owner_only(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: mine\n")
    path.chmod(0o644)
    settings = "engine.settings={urls: [http://127.0.0.1:1], api_key: secret}"
    write_config(path, load_config(None, ["engine.name=vllm", settings], RunConfig))
    assert "secret" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_paths_are_absolute_so_that_a_run_resumes_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()

    config = load_config(None, ["tasks.train=t.jsonl", "model=model"], RunConfig)

    assert config.tasks.train == tmp_path / "t.jsonl"
    assert config.model == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("section", "family"), [("engine", engines), ("harness", harnesses), ("runtime", runtimes)]
)
def test_every_implementation_has_settings(section, family):
    assert set(family.names()) <= set(implementation_names(section))
    for name in implementation_names(section):
        assert issubclass(settings_model(section, name), BaseModel)


def test_the_environment_has_defaults():
    cache, data = Path("~/.cache/polar"), Path("~/.local/share/polar")

    assert environment({}) == Environment(cache.expanduser(), data.expanduser(), debug=False)


def test_the_environment_is_read_where_it_is_set():
    found = environment({"POLAR_CACHE": "/a", "XDG_DATA_HOME": "/b", "POLAR_DEBUG": "1"})

    assert found == Environment(Path("/a"), Path("/b/polar"), debug=True)


def test_the_reference_tells_type_default_and_meaning():
    page = reference({"tuning": Tuning})

    assert "| `lr` | number | `1e-06` | How far \\| a step goes, and no further. |" in page
    assert "| `betas` | [number, number] | `[0.9, 0.98]` | Decay. |" in page
    assert "| `folder` | path or null | `null` | Where. |" in page


def test_a_field_that_does_not_say_what_it_means_is_refused():
    class Silent(BaseModel):
        lr: float = 1.0

    with pytest.raises(ValueError, match="lr"):
        field_docs(Silent)


def test_the_page_of_all_settings_is_up_to_date():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")

    assert run_reference() in page, "run `make docs`"


def test_reading_a_config_does_not_import_torch():
    program = "import sys, polar.config as c; c.load_config(None, (), c.RunConfig)"

    subprocess.run(
        [sys.executable, "-c", f"{program}; assert 'torch' not in sys.modules"], check=True
    )


@pytest.mark.parametrize("settings", ["{}", "{extra_args: [--verbose]}"])
def test_harnesses_are_looked_for_where_the_environment_says(monkeypatch, tmp_path, settings):
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path))
    overrides = ["harness.name=codex", f"harness.settings={settings}"]

    config = load_config(None, overrides, RunConfig)

    assert config.harness.settings.cache == tmp_path


def test_the_config_of_a_run_of_an_earlier_release_is_read(tmp_path):
    old = written(tmp_path, "old.yaml", "rollout: {credit: steps, discount: 0.9, max_calls: 3}")
    config = load_config(old, (), RunConfig)

    assert (config.train.credit, config.train.discount) == ("steps", 0.9)
    assert config.rollout.max_calls == 3


def test_a_key_that_is_set_where_it_was_and_where_it_is_is_refused():
    told = refusal("rollout.discount=0.5", "train.credit=steps", "train.discount=0.9")

    assert "unknown key `rollout.discount`" in told
