"""A trainer, sessions and engine of the training loop, without a model."""

import json
from collections.abc import Sequence
from pathlib import Path

from train_cases import make_trace, make_trajectory

from polar.train import StepMetrics, SupervisedMetrics, TrainSettings
from polar.train.loop import TrainingLoop
from polar.train.loop_settings import LoopSettings
from polar.types import EvaluatorSpec, Group, Task, TaskId


def tasks(count: int, name: str = "train") -> tuple[Task, ...]:
    return tuple(
        Task(TaskId(f"{name}-{i}"), "do it", EvaluatorSpec("files"), expert=("true",))
        for i in range(count)
    )


class CountingTrainer:
    """Its weights are one number, which each step moves by what the sessions earned."""

    def __init__(self) -> None:
        self.settings = TrainSettings()
        self.weight_version = 0
        self.weights = 0.0
        self.during_step = lambda: None

    def step(self, groups, *, progress, before_update) -> StepMetrics:
        progress(0.5)
        self.during_step()
        progress(1.0)
        before_update()
        self.weights += sum(t.reward for group in groups for t in group.trajectories)
        self.weight_version += 1
        return StepMetrics(
            weight_version=self.weight_version,
            loss=self.weights,
            grad_norm=1.0,
            lr=1e-3,
            optimizer_steps=1,
            groups=len(groups),
            groups_without_spread=0,
            truncated_sessions=0,
            unscored_calls=None,
            trained_tokens=1,
            dropped_tokens=0,
            tree_tokens=1,
            sequence_tokens=1,
            tree_saving=1.0,
            logprob_gap_mean=None,
            logprob_gap_max=None,
            engine_kl=None,
            ratio_mean=None,
            ratio_max=None,
            clip_fraction=None,
            clip_high_fraction=None,
            engine_weight_mean=None,
            engine_bounded_fraction=None,
            kl=None,
            entropy=None,
            train_s=0.0,
        )

    def supervised(self, trajectories, *, epochs, batch_sessions, lr, progress):
        progress(1.0)
        self.weights += 0.25
        self.weight_version += 1
        return SupervisedMetrics(self.weight_version, (0.1,), 1, 1, 0, 1, 1, 0.0)

    def save_state(self, path: Path) -> None:
        path.write_text(json.dumps([self.weight_version, self.weights]))

    def load_state(self, path: Path) -> None:
        self.weight_version, self.weights = json.loads(path.read_text())


class Bench:
    """A loop and a diary of what it did.

    What a session earns follows from its task and the weights, so that two runs can be compared.
    """

    def __init__(self, folder: Path, *, heldout: int = 4, **settings) -> None:
        self.folder = folder
        self.trainer = CountingTrainer()
        self.diary: list[str] = []
        self.rows: list[dict] = []
        self.chosen: list[list[TaskId]] = []
        self.saved: list[int] = []
        self.kept: list[tuple[str, int, int]] = []
        self.now = 0.0
        self.seconds = 0.0
        self.expert_passes = True
        self.while_collecting = nothing_happens
        self.before_group = nothing_happens
        self.loop = TrainingLoop(
            trainer=self.trainer,
            collect=self.collect,
            collect_expert=self.collect_expert,
            sync=self,
            train_tasks=tasks(8),
            heldout_tasks=tasks(heldout, "heldout"),
            settings=LoopSettings(
                **{"tasks_per_step": 2, "group_size": 2, "max_staleness": 0, **settings}
            ),
            seed=1,
            state_dir=folder,
            record=lambda row: self.rows.append(dict(row)),
            keep=lambda phase, step, groups: self.kept.append((phase, step, len(groups))),
            progress=lambda what, share: None,
            saved=lambda state: self.saved.append(state.step),
            clock=lambda: self.now,
        )

    async def collect(
        self,
        chosen: Sequence[Task],
        *,
        samples: int,
        phase: str,
        step: int,
        places: Sequence[int] | None = None,
        on_group=lambda group: None,
    ):
        self.diary.append(f"{phase} {step}")
        if phase == "train":
            self.chosen.append([task.id for task in chosen])
        self.now += self.seconds
        version = self.trainer.weight_version
        await self.while_collecting(phase, step)
        groups = []
        for task in chosen:
            await self.before_group(step, task)
            reward = (hash_of(task.id) + self.trainer.weights) % 1.0
            groups.append(Group(task.id, task, self.sessions_of(task, reward, samples, version)))
            on_group(groups[-1])
        return tuple(groups)

    def sessions_of(self, task: Task, reward: float, samples: int, version: int):
        return (session(reward, version),) * samples

    async def collect_expert(self, chosen: Sequence[Task], *, samples: int, phase: str, step: int):
        self.diary.append(f"{phase} {step}")
        reward = float(self.expert_passes)
        return tuple(Group(t.id, t, (session(reward),) * samples) for t in chosen)

    async def before(self) -> None:
        self.diary.append("pause")

    async def after(self, version: int) -> None:
        self.diary.append(f"serve {version}")


def hash_of(name: str) -> float:
    return sum(name.encode()) % 7 / 7


def session(reward: float, version: int = 0):
    return make_trajectory(make_trace([1, 2, 3], [1, 2], version=version), reward=reward)


async def nothing_happens(*_: object) -> None:
    pass
