"""`polar sft` learns from recorded sessions, of a run or of files, and from nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
from run_folders import write_run
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from polar.cli.recordings import of_files, of_run
from polar.cli.run_folder import RunFolder
from polar.cli.sft import sft
from polar.errors import ConfigError, FidelityError, TrainingError
from polar.rendering import load_renderer
from polar.trajectory import from_table, to_table


@pytest.fixture
def run(tmp_path) -> Path:
    """A recorded run, and a model of random weights that can be trained."""
    folder = write_run(tmp_path)
    write_model(tmp_path / "model", vocabulary=400)
    return folder


def write_model(folder: Path, vocabulary: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **shape, **heads))
        model.save_pretrained(folder)


def row_of(out: Path) -> dict:
    (line,) = (out / "metrics.jsonl").read_text().splitlines()
    return json.loads(line)


FAST = ["sft.lr=0.01", "sft.batch_sessions=1"]


def test_the_loss_goes_down_and_the_checkpoint_is_a_model_to_go_on_with(run, tmp_path):
    out = tmp_path / "out"
    sft(run=run, min_reward=0.5, epochs=6, out=out, override=FAST)

    row = row_of(out)
    assert row["losses"] == sorted(row["losses"], reverse=True)
    assert row["losses"][-1] < row["losses"][0] - 1.0
    assert (row["sessions"], row["optimizer_steps"]) == (2, 12)
    recorded = from_table(parquet.read_table(*(run / "trajectories").glob("*")))
    assert row["trained_tokens"] == 6 * sum(t.report.kept for t in recorded)
    checkpoint = out / "checkpoints" / "final"
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    after = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
    load_renderer(str(checkpoint))
    sft(run=run, model=str(checkpoint), out=tmp_path / "more", override=FAST)
    assert row_of(tmp_path / "more")["losses"][0] < row["losses"][0] - 1.0


def test_files_and_the_journal_give_what_the_run_gives(run, tmp_path):
    expected = list(of_run(RunFolder(run), wanted=lambda phase: True))
    (file,) = (run / "trajectories").glob("*.parquet")
    out = tmp_path / "out"
    sft(data=[file], model=str(tmp_path / "model"), out=out, override=FAST)
    assert row_of(out)["sessions"] == len(expected) == 2
    shutil.rmtree(run / "trajectories")
    built = list(of_run(RunFolder(run), wanted=lambda phase: True))
    assert [t.session_id for t in built] == [t.session_id for t in expected]
    for one, other in zip(built, expected, strict=True):
        assert [t.token_ids.tolist() for t in one.traces] == [
            t.token_ids.tolist() for t in other.traces
        ]


@pytest.mark.parametrize(("best_of", "sessions"), [(1, 1), (2, 2)])
def test_the_best_of_a_task_are_kept_and_the_rest_is_counted(run, tmp_path, best_of, sessions):
    sft(run=run, best_of=best_of, out=tmp_path / "out", override=FAST)
    row = row_of(tmp_path / "out")
    assert row["sessions"] == sessions
    assert row["left_out"] == ({"not_among_the_best": 1} if best_of == 1 else {})


def test_held_out_sessions_are_never_learned_from_unless_named(run, tmp_path):
    (file,) = (run / "trajectories").glob("*.parquet")
    held_out = tmp_path / "heldout.parquet"
    table = to_table(from_table(parquet.read_table(file)), phase="heldout_after", step=3)
    parquet.write_table(table, held_out)
    arguments = {"data": [held_out], "model": str(tmp_path / "model")}
    with pytest.raises(ConfigError, match="no session is left to learn from"):
        sft(**arguments, out=tmp_path / "none")
    sft(**arguments, out=tmp_path / "some", override=[*FAST, "sft.phases=[heldout_after]"])
    assert row_of(tmp_path / "some")["sessions"] == 2


def test_sessions_that_earned_too_little_are_an_error_that_counts_them(run, tmp_path):
    with pytest.raises(ConfigError, match="2 reward_too_low"):
        sft(run=run, min_reward=0.9, out=tmp_path / "out")


def test_a_model_with_another_tokenizer_is_refused(run, tmp_path):
    write_model(tmp_path / "model", vocabulary=20)
    with pytest.raises(TrainingError, match="the model knows 20 tokens"):
        sft(run=run, out=tmp_path / "out", override=FAST)


def test_a_folder_is_written_once(run, tmp_path):
    sft(run=run, out=tmp_path / "out", override=FAST)
    with pytest.raises(ConfigError, match="holds a training already"):
        sft(run=run, out=tmp_path / "out", override=FAST)


@pytest.mark.parametrize("text", ["", "not parquet"])
def test_a_file_that_is_no_parquet_is_named(tmp_path, text):
    (tmp_path / "a.parquet").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        list(of_files([tmp_path / "a.parquet"], lambda phase: True))


def test_a_table_of_another_kind_is_refused(run, tmp_path):
    (file,) = (run / "trajectories").glob("*.parquet")
    parquet.write_table(
        parquet.read_table(file).replace_schema_metadata({}), tmp_path / "bare.parquet"
    )
    with pytest.raises(FidelityError, match="schema version"):
        list(of_files([tmp_path / "bare.parquet"], lambda phase: True))


def test_a_run_without_sessions_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no recorded sessions"):
        list(of_run(RunFolder(tmp_path), lambda phase: True))


@pytest.mark.parametrize("arguments", [{}, {"run": Path("a"), "data": [Path("b")]}], ids=str)
def test_the_sessions_come_from_one_place(arguments):
    with pytest.raises(ConfigError, match="either a run"):
        sft(**arguments)
