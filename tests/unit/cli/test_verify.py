"""`polar verify`: finds a single token that is missing, doubled, altered or invented."""

import asyncio
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from run_folders import FIRST, SECOND, write_run

from polar.cli import app
from polar.cli.run_folder import RunFolder
from polar.cli.verify import verify_run
from polar.config import RunConfig, load_config, write_config
from polar.engines import SampleRequest, TapedEngine
from polar.engines.scripted import ScriptedEngine
from polar.errors import FidelityError, JournalError
from polar.types import Sampling


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("verify"))


@pytest.fixture
def run(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


def rewrite(path: Path, column: str, change) -> None:
    table = parquet.read_table(path)
    values = table.column(column).to_pylist()
    change(values)
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    parquet.write_table(table.set_column(index, field, pa.array(values, field.type)), path)


def violations(run: Path) -> str:
    return "\n".join(verify_run(RunFolder(run)).violations)


def test_a_sound_run_has_no_violation_and_every_token_is_accounted_for(run):
    found = verify_run(RunFolder(run))

    assert found.violations == []
    assert found.counts["calls"] == 4
    assert found.counts["trajectories equal to the rebuilt ones"] == 2
    assert found.counts["requests on the engine's tape, each a call"] == 4
    dropped = found.counts["tokens dropped, each for a counted reason"]
    assert dropped > 0
    assert found.counts["tokens kept"] + dropped == found.counts["sampled tokens"]
    assert found.counts["tokens whose logprob was asked for afterwards"] == 1
    assert found.counts["tokens sampled behind the ends of replies, given to nobody"] == 3


def test_a_run_is_rebuilt_by_what_its_own_config_says_trains(run):
    plain = verify_run(RunFolder(run)).counts["tokens kept"]
    settings = load_config(None, ["rollout.train_kinds=[main, auxiliary]"], RunConfig)
    write_config(run / "config.yaml", settings)

    found = verify_run(RunFolder(run))

    assert found.counts["tokens kept"] == found.counts["sampled tokens"] > plain
    assert SECOND in "".join(found.violations)  # its table was written without the side call


@pytest.mark.parametrize("column", ["token_ids", "logprobs", "weight_versions"])
def test_a_single_altered_value_in_a_trace_is_found(run, column):
    def change(rows) -> None:
        rows[0][-1] += 1

    rewrite(run / "trajectories" / "step-00001.parquet", column, change)

    assert FIRST in violations(run)


@pytest.mark.parametrize("column", ["call_tokens", "call_indices"])
def test_a_token_that_is_said_to_be_of_another_call_is_found(run, column):
    def change(rows) -> None:
        rows[0][-1] += 1

    rewrite(run / "trajectories" / "step-00001.parquet", column, change)

    assert FIRST in violations(run)


def in_an_earlier_version(path: Path) -> None:
    table = parquet.read_table(path)
    lacking = ["call_tokens", "call_indices", "step_rewards", "divergences"]
    table = table.drop_columns(lacking).replace_schema_metadata({"polar.trajectories": "1"})
    parquet.write_table(table, path)


def test_trajectories_of_an_earlier_release_are_compared_in_what_they_hold(run):
    path = run / "trajectories" / "step-00001.parquet"
    in_an_earlier_version(path)
    assert violations(run) == ""

    rewrite(path, "logprobs", lambda rows: rows[0].__setitem__(-1, -9.0))
    assert FIRST in violations(run)


def test_a_single_token_missing_from_a_trace_is_found(run):
    path = run / "trajectories" / "step-00001.parquet"
    for column in ("token_ids", "loss_mask", "logprobs", "weight_versions"):
        rewrite(path, column, lambda rows: rows[0].pop())

    assert FIRST in violations(run)


def test_a_context_token_that_is_trained_is_found(run):
    def change(rows) -> None:
        rows[0][0] = True

    rewrite(run / "trajectories" / "step-00001.parquet", "loss_mask", change)

    assert FIRST in violations(run)


def test_a_trajectory_of_no_session_is_found(run):
    def change(rows) -> None:
        rows[0] = "nobody"

    rewrite(run / "trajectories" / "step-00001.parquet", "session_id", change)

    assert "nobody" in violations(run)


def test_a_call_that_the_engine_never_answered_is_found(run):
    tape = run / "engine.tape"
    end = struct.pack("<II", 3, zlib.crc32(b"end")) + b"end"
    tape.write_bytes(tape.read_bytes().removesuffix(end)[:-1])

    assert "engine.tape" in violations(run)


def test_a_call_lost_from_the_journal_is_found(run):
    with sqlite3.connect(run / "journal.sqlite") as journal:
        last = "SELECT max(ordinal) FROM calls"
        journal.execute(f"DELETE FROM calls WHERE ordinal = ({last})")
    journal.close()

    assert "engine.tape" in violations(run)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("session", [FIRST, "broken off"])
def test_only_what_a_killed_process_sampled_for_a_session_that_it_broke_off_is_in_no_call(
    run, closed, session
):
    async def sample() -> None:
        engine = TapedEngine(ScriptedEngine([[1, 2, 3]]), run / "engine.tape")
        async for _ in engine.sample(SampleRequest([5], Sampling(), affinity=session)):
            pass
        if closed:
            await engine.aclose()

    asyncio.run(sample())
    found = verify_run(RunFolder(run))
    in_no_call = found.counts["requests of sessions that a killed process broke off, in no call"]
    if session == FIRST or closed:
        assert "1 requests on the engine's tape are in no call" in "".join(found.violations)
    else:
        assert found.violations == []
        assert in_no_call == 1
        assert found.counts["requests on the engine's tape, each a call"] == 4


def test_a_run_that_asked_nothing_of_its_engine_needs_no_tape(run):
    (run / "engine.tape").unlink()
    shutil.rmtree(run / "trajectories")
    with sqlite3.connect(run / "journal.sqlite") as journal:
        journal.execute("DELETE FROM calls")
    journal.close()

    assert violations(run) == ""


def test_a_missing_tape_is_a_violation(run):
    (run / "engine.tape").unlink()

    assert "engine.tape is missing" in violations(run)


@pytest.mark.parametrize("sound", [True, False])
def test_the_exit_code_tells_whether_anything_is_violated(run, capsys, sound):
    if not sound:
        (run / "engine.tape").unlink()

    with pytest.raises(SystemExit) as ended:
        app.main(["verify", str(run)])

    told = capsys.readouterr()
    assert (ended.value.code or 0) == (0 if sound else FidelityError.exit_code)
    assert "no violation" in told.out if sound else "violation:" in told.err


@pytest.mark.parametrize(
    ("capture", "said"),
    [("recorded", "4 prompts that are known only as their server"), ("tokens", "")],
)
def test_what_nobody_can_check_is_said(run, capsys, capture, said):
    with sqlite3.connect(run / "journal.sqlite") as journal:
        journal.execute("UPDATE calls SET capture = ?", (capture,))
    journal.close()
    rewrite(
        run / "trajectories" / "step-00001.parquet",
        "capture",
        lambda rows: rows.__setitem__(slice(None), [capture] * len(rows)),
    )

    with pytest.raises(SystemExit) as ended:
        app.main(["verify", str(run)])

    told = capsys.readouterr().out
    assert not ended.value.code
    assert said in " ".join(told.split())
    assert ("no violation in what could be checked" in told) == bool(said)


def test_a_row_that_claims_to_know_its_tokens_better_than_its_calls_is_found(run):
    with sqlite3.connect(run / "journal.sqlite") as journal:
        journal.execute("UPDATE calls SET capture = 'recorded'")
    journal.close()

    assert FIRST in violations(run)


def test_calls_of_text_alone_are_not_counted_as_checked(run):
    with sqlite3.connect(run / "journal.sqlite") as journal:
        journal.execute(
            "UPDATE calls SET capture = 'text', base_id = NULL, parent_id = NULL,"
            " shared_tokens = 0,"
            " shared_messages = 0, messages_tail = '[]', tools = '[]', prompt_tail = x'',"
            " sampled = x'', logprobs = x'', versions = x''"
        )
    journal.close()
    (run / "engine.tape").write_bytes(b"polar tape 1\n")
    (run / "trajectories" / "step-00001.parquet").unlink()

    found = verify_run(RunFolder(run))

    assert found.violations == []
    assert (found.counts["calls"], found.counts["sampled tokens"]) == (0, 0)
    assert found.unchecked["calls of which only the text is known"] == 4


def test_a_folder_that_is_no_run_is_one_clear_error(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("model: x\nrollout: {}\n")

    with pytest.raises(SystemExit) as ended:
        app.main(["verify", str(tmp_path)])

    assert ended.value.code == JournalError.exit_code
    assert "no journal" in capsys.readouterr().err
