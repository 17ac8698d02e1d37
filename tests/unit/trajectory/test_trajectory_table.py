import dataclasses
import json
from pathlib import Path
from types import MappingProxyType

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_strategies import make_call, sessions

from polar.errors import FidelityError
from polar.trajectory import SCHEMA, SCHEMA_VERSION, build, credit, from_table, to_table
from polar.types import Cancelled, Completed, Failed, Grade, Session, TimedOut, Trajectory

floats = st.floats(allow_nan=False, allow_infinity=False)
grades = st.builds(
    Grade,
    reward=floats,
    passed=st.booleans(),
    details=st.dictionaries(st.text(), st.integers() | st.text()).map(MappingProxyType),
)
outcomes = st.one_of(
    st.builds(
        Completed,
        grade=grades,
        exit_code=st.integers(0, 255),
        cut_off=st.sampled_from([None, "max_calls", "context"]),
    ),
    st.builds(Failed, stage=st.just("running"), error=st.text()),
    st.builds(TimedOut, stage=st.just("running"), grade=st.none() | grades),
    st.builds(Cancelled, reason=st.text()),
)


@st.composite
def trajectories(draw):
    number = draw(st.integers(0, 10**6))
    builder = draw(st.sampled_from(["prefix_merging", "canonical"]))
    built = build(draw(sessions()), builder=builder)
    by_call = draw(st.booleans())
    return Trajectory(
        session_id=f"s{number}",
        task_id=draw(st.text(max_size=5)),
        group_id="g",
        traces=built.traces,
        reward=draw(floats),
        outcome=draw(outcomes),
        report=built.report,
        step_rewards={
            call_id: draw(floats)
            for trace in built.traces
            if by_call
            for call_id in trace.call_ids
            if draw(st.booleans())
        },
    )


def plain(trajectory):
    """Arrays as lists and read-only mappings as dicts, to compare by value."""
    traces = [
        (
            [(a.dtype, a.tolist()) for a in (t.token_ids, t.loss_mask, t.weight_versions)],
            (t.logprobs.dtype, t.logprobs.tobytes()),
            t.call_ids,
            t.divergences,
            t.call_tokens,
            t.call_indices,
        )
        for t in trajectory.traces
    ]
    rewards = dict(trajectory.step_rewards)
    return dataclasses.replace(trajectory, traces=(), step_rewards=rewards), traces


@given(st.lists(trajectories(), max_size=4, unique_by=lambda t: t.session_id))
def test_trajectories_come_back_from_a_table_as_they_were(written):
    table = to_table(written, phase="train", step=3)
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert [plain(t) for t in from_table(table)] == [plain(t) for t in written]


def test_a_parquet_file_keeps_schema_and_version(tmp_path):
    outcome = Completed(Grade(1.0, True), exit_code=0)
    session = Session("s1", "t1", "g1", 0, "key")
    trajectory = credit(session, build([make_call(0, [1, 2], [3])]), outcome)
    pq.write_table(to_table([trajectory], phase="rollout"), tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert plain(from_table(table)[0]) == plain(trajectory)
    assert table.column("phase").to_pylist() == ["rollout"]
    assert table.column("step").to_pylist() == [None]


def test_a_session_without_traces_is_one_row():
    outcome = Failed("running", "the sandbox broke")
    report = build([]).report
    empty = Trajectory("s1", "t1", "g1", (), 0.0, outcome, report)
    table = to_table([empty], phase="train", step=0)
    assert table.column("token_ids").to_pylist() == [None]
    assert from_table(table) == (empty,)


def text_call(index):
    return make_call(index, [], [], capture="text")


def test_a_session_of_which_only_the_text_is_known_says_so_in_its_row():
    built = build([text_call(0), text_call(1)])
    done = Trajectory("s1", "t1", "g1", built.traces, 0.0, Failed("running", "x"), built.report)
    table = to_table([done], phase="rollout")
    assert table.column("capture").to_pylist() == ["text"]
    assert table.column("token_ids").to_pylist() == [None]
    assert (from_table(table)[0].report.capture, from_table(table)[0].report.text_calls) == (
        "text",
        2,
    )


def test_a_table_of_another_version_is_refused():
    table = to_table([], phase="train").replace_schema_metadata({"polar.trajectories": "999"})
    with pytest.raises(FidelityError, match="999"):
        from_table(table)
    with pytest.raises(FidelityError, match="none"):
        from_table(pa.table({"token_ids": []}))


def as_version(table, version):
    """Make the table that an earlier release would have written."""
    lacking = ["capture"]
    lacking += ["call_tokens", "call_indices", "step_rewards"] if version < 3 else []
    lacking += ["divergences"] if version == 1 else []
    table = _without_in_reports(table, "text_calls")
    if version == 2:
        rewards = pa.nulls(table.num_rows, pa.list_(pa.float64()))
        table = table.append_column("call_rewards", rewards)
    metadata = {"polar.trajectories": str(version)}
    return table.drop_columns(lacking).replace_schema_metadata(metadata)


def _without_in_reports(table, field):
    reports = [json.loads(report) for report in table.column("report_json").to_pylist()]
    for report in reports:
        del report[field]
    column = pa.array([json.dumps(report) for report in reports], pa.string())
    return table.set_column(table.schema.get_field_index("report_json"), "report_json", column)


@given(st.lists(trajectories(), max_size=4, unique_by=lambda t: t.session_id))
def test_a_table_of_version_3_is_read_as_one_whose_tokens_are_known(written):
    older = as_version(to_table(written, phase="train"), 3)
    assert [plain(t) for t in from_table(older)] == [plain(t) for t in written]


@pytest.mark.parametrize("version", [1, 2])
@given(st.lists(trajectories(), max_size=4, unique_by=lambda t: t.session_id))
def test_tables_of_earlier_versions_are_read_and_what_they_lack_is_unknown(version, written):
    table = as_version(to_table(written, phase="train"), version)
    for read, expected in zip(from_table(table), written, strict=True):
        known = [
            dataclasses.replace(
                trace,
                call_tokens=(),
                call_indices=(),
                divergences=trace.divergences if version == 2 else 0,
            )
            for trace in expected.traces
        ]
        assert plain(read) == plain(
            dataclasses.replace(expected, traces=tuple(known), step_rewards={})
        )


def test_every_column_is_in_the_documentation():
    page = Path(__file__).parents[3] / "docs" / "trajectories.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| `")]
    documented = [(name.strip(" `"), kind.strip(" `")) for _, name, kind, *_ in rows]
    columns = [(field.name, str(field.type).replace("element: ", "")) for field in SCHEMA]
    assert [row for row in documented if row in columns] == columns
    assert f"version {SCHEMA_VERSION}" in page.read_text()


@given(st.lists(trajectories(), max_size=4, unique_by=lambda t: t.session_id))
def test_trajectories_come_back_from_a_parquet_file_as_they_were(written):
    file = pa.BufferOutputStream()
    pq.write_table(to_table(written, phase="train", step=3), file)
    table = pq.read_table(pa.BufferReader(file.getvalue()))
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert [plain(t) for t in from_table(table)] == [plain(t) for t in written]


@settings(max_examples=10)
@given(st.lists(trajectories(), min_size=1, max_size=4, unique_by=lambda t: t.session_id))
def test_the_datasets_library_reads_every_row_and_value_of_a_file(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("datasets")
    table = to_table(written, phase="train", step=4)
    pq.write_table(table, folder / "t.parquet")
    rows = datasets.load_dataset(
        "parquet",
        data_files=str(folder / "t.parquet"),
        split="train",
        cache_dir=str(folder / "cache"),
    )
    assert rows.column_names == SCHEMA.names
    assert rows.to_list() == table.to_pylist()


@pytest.mark.parametrize("column", ["outcome_json", "report_json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', None])
def test_a_damaged_row_is_one_clear_error(column, text):
    session = Session("s", "t", "g", 0, "k")
    built = build([make_call(0, [1, 2], [3])])
    found = credit(session, built, Completed(Grade(1.0, True, MappingProxyType({})), 0))
    table = to_table([found], phase="train")
    index = table.column_names.index(column)
    broken = table.set_column(index, column, pa.array([text] * len(table), pa.string()))
    with pytest.raises(FidelityError, match="the table is damaged"):
        from_table(broken)
