import dataclasses
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_strategies import make_call, sessions

from polar.errors import FidelityError
from polar.trajectory import SCHEMA, build, credit, from_table, reward_of, to_table
from polar.types import Cancelled, Completed, Failed, Grade, Session, TimedOut, Trajectory

floats = st.floats(allow_nan=False, allow_infinity=False)
grades = st.builds(
    Grade,
    reward=floats,
    passed=st.booleans(),
    details=st.dictionaries(st.text(), st.integers() | st.text()).map(MappingProxyType),
)
outcomes = st.one_of(
    st.builds(Completed, grade=grades, exit_code=st.integers(0, 255)),
    st.builds(Failed, stage=st.just("running"), error=st.text()),
    st.builds(TimedOut, stage=st.just("running"), grade=st.none() | grades),
    st.builds(Cancelled, reason=st.text()),
)


@st.composite
def trajectories(draw):
    number = draw(st.integers(0, 10**6))
    built = build(draw(sessions()))
    return Trajectory(
        session_id=f"s{number}",
        task_id=draw(st.text(max_size=5)),
        group_id="g",
        traces=built.traces,
        reward=draw(floats),
        outcome=draw(outcomes),
        report=built.report,
    )


def plain(trajectory):
    """Arrays as lists and read-only mappings as dicts, to compare by value."""
    traces = [
        (
            [(a.dtype, a.tolist()) for a in (t.token_ids, t.loss_mask, t.weight_versions)],
            (t.logprobs.dtype, t.logprobs.tobytes()),
            t.call_ids,
        )
        for t in trajectory.traces
    ]
    return dataclasses.replace(trajectory, traces=()), traces


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


def test_a_table_of_another_version_is_refused():
    table = to_table([], phase="train").replace_schema_metadata({"polar.trajectories": "999"})
    with pytest.raises(FidelityError, match="999"):
        from_table(table)
    with pytest.raises(FidelityError, match="None"):
        from_table(pa.table({"token_ids": []}))


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (Completed(Grade(0.5, False), 0), 0.5),
        (TimedOut("running", Grade(1.0, True)), 1.0),
        (TimedOut("running"), None),
        (Failed("preparing", "no image"), None),
        (Cancelled("asked"), None),
    ],
)
def test_only_a_grade_is_a_reward(outcome, reward):
    session = Session("s1", "t1", "g1", 0, "key")
    trajectory = credit(session, build([make_call(0, [1], [2])]), outcome)
    assert reward_of(outcome) == reward
    assert (trajectory.reward if trajectory else None) == reward
