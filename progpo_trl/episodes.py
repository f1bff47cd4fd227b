"""Plain data of a rollout: steps, episodes, and the columns that the advantage step works on.

Nothing here knows torch, a trainer or an environment: episodes can be pickled, gathered between processes and written
as JSON lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

INVALID_ACTION_PENALTY = 0.1  # what an invalid action costs unless a run says otherwise (as published)


class StopReason(StrEnum):
    """Why an episode ended. Truncation is decided here, never guessed from the last token."""

    SUCCESS = "success"  # the environment says the task is solved
    FAILURE = "failure"  # the environment ended the episode without success
    STEP_LIMIT = "step_limit"  # `max_turns` actions were played
    CONTEXT_LIMIT = "context_limit"  # the next prompt would not fit the context
    ENVIRONMENT_ERROR = "environment_error"  # the environment raised; the episode is dropped from all statistics


@dataclass(slots=True)
class Step:
    """One turn: what the policy saw, what it sampled, what came of it.

    context_ids, completion_ids: int32 arrays, exactly the ids used for sampling (the completion includes the
    end-of-turn token when it was sampled). logprobs: float32, one per sampled id, or None when the backend gives none.
    observation: the raw environment text before the action (the "anchor"), not the prompt.
    """

    observation: str
    context_ids: np.ndarray
    completion_ids: np.ndarray
    logprobs: np.ndarray | None
    response: str
    action: str
    format_valid: bool
    admissible: bool
    reward: float = 0.0
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Episode:
    """One trajectory of one task.

    index: its place in the generation batch of all processes; group: the number of its group there; excluded: set
    when fewer than two members of its group could be scored; unreported: the task set's numbers that no step's info
    has, at what they count as then (see `TaskSet.unreported`).
    """

    task_id: str
    task_type: str = "all"
    index: int = 0
    group: int = 0
    seed: int = 0
    task: str = ""
    steps: list[Step] = field(default_factory=list)
    final_observation: str | None = None
    success: bool = False
    stop_reason: StopReason | None = None
    error: str | None = None
    excluded: bool = False
    extra_rewards: dict[str, float] = field(default_factory=dict)
    unreported: dict[str, float] = field(default_factory=dict)
    advantages: np.ndarray | None = None

    @property
    def dropped(self) -> bool:
        """True when the episode is left out: its environment failed, or the rest of its group was lost.

        An episode whose first prompt did not fit has no step to train on, but it is a failure like any other.
        """
        if self.excluded or self.stop_reason is StopReason.ENVIRONMENT_ERROR:
            return True
        return not self.steps and self.stop_reason is not StopReason.CONTEXT_LIMIT

    @property
    def environment_return(self) -> float:
        """Undiscounted sum of the environment's rewards."""
        return math.fsum(step.reward for step in self.steps)

    @property
    def episode_return(self) -> float:
        """Environment return plus the extra (weighted) reward functions."""
        return self.environment_return + math.fsum(self.extra_rewards.values())

    def without_tokens(self) -> Episode:
        """A copy without contexts and log-probabilities: what processes send each other."""
        empty = np.empty(0, np.int32)
        steps = [replace(s, context_ids=empty, logprobs=None) for s in self.steps]
        return replace(self, steps=steps)

    def to_json(self) -> dict[str, Any]:
        """A JSON-safe record. Token ids are left out: the text of every step is what people read and compare."""
        weighed = self.advantages is not None and len(self.advantages) == len(self.steps)
        advantages = [float(a) for a in self.advantages] if weighed else None
        return {
            "task_id": self.task_id,
            "task_type": self.task_type,
            "task": self.task,
            "group": self.group,
            "index": self.index,
            "seed": self.seed,
            "success": self.success,
            "stop_reason": self.stop_reason.value if self.stop_reason else None,
            "error": self.error,
            "return": self.episode_return,
            "extra_rewards": self.extra_rewards,
            "final_observation": self.final_observation,
            "steps": [
                {
                    "observation": s.observation,
                    "response": s.response,
                    "action": s.action,
                    "format_valid": s.format_valid,
                    "admissible": s.admissible,
                    "reward": s.reward,
                    "tokens": len(s.completion_ids),
                    "truncated": s.truncated,
                    "advantage": None if advantages is None else advantages[i],
                }
                for i, s in enumerate(self.steps)
            ],
        }


_STEP_COLUMNS = ("episode", "step", "observation", "action", "reward", "penalty", "format_valid", "admissible")
_EPISODE_COLUMNS = (
    "episode_group",
    "episode_return",
    "environment_return",
    "success",
    "dropped",
    "final_observation",
)
BLOCK = 4096  # steps: a column of numbers is 32 KB


def episode_from_json(record: dict[str, Any]) -> Episode:
    """The episode of a line of episodes.jsonl; token ids are not in it.

    Raises KeyError, TypeError or ValueError for what is no such line.
    """
    steps, advantages = [], []
    empty = np.empty(0, np.int32)
    for s in record["steps"]:
        texts = {name: str(s[name]) for name in ("observation", "response", "action")}
        flags = {name: bool(s[name]) for name in ("format_valid", "admissible")}
        tokens = {"context_ids": empty, "completion_ids": empty, "logprobs": None}
        steps.append(Step(reward=float(s["reward"]), **texts, **flags, **tokens))
        advantages.append(s.get("advantage"))
    weighed = bool(advantages) and None not in advantages
    return Episode(
        task_id=str(record["task_id"]),
        task_type=str(record.get("task_type", "all")),
        task=str(record.get("task", "")),
        index=int(record["index"]),
        group=int(record["group"]),
        seed=int(record.get("seed", 0)),
        steps=steps,
        final_observation=record.get("final_observation"),
        success=bool(record["success"]),
        stop_reason=None if record.get("stop_reason") is None else StopReason(record["stop_reason"]),
        error=record.get("error"),
        extra_rewards={name: float(value) for name, value in record.get("extra_rewards", {}).items()},
        advantages=np.array(advantages, np.float32) if weighed else None,
    )


@dataclass(frozen=True)
class StepBatch:
    """The steps of ALL processes of one generation batch, as columns. Input of every advantage estimator.

    Per step, shape (n_steps,), chronological within an episode:
        episode         int64, index into the per-episode columns
        step            int64, 0-based
        observation     object (str), raw observation before the action
        action          object (str)
        reward          float64, environment reward of the step; extra reward functions are added to the last step
        penalty         float64 >= 0, what an invalid action costs on its own row (0 where the action is valid)
        format_valid    bool, the response had the required form
        admissible      bool, the action was among the environment's admissible commands
    Per episode, shape (n_episodes,):
        episode_group, episode_return, success, dropped, final_observation (object: str or None)
        environment_return  float64, episode_return without the extra reward functions

    Dropped episodes contribute no steps to any statistic; estimators give their steps advantage 0.
    """

    episode: np.ndarray
    step: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    penalty: np.ndarray
    format_valid: np.ndarray
    admissible: np.ndarray
    episode_group: np.ndarray
    episode_return: np.ndarray
    environment_return: np.ndarray
    success: np.ndarray
    dropped: np.ndarray
    final_observation: np.ndarray

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def n_episodes(self) -> int:
        return len(self.episode_group)

    @property
    def group(self) -> np.ndarray:
        """(n_steps,) group of each step."""
        return self.episode_group[self.episode]

    @property
    def row_score(self) -> np.ndarray:
        """(n_steps,) return of the step's episode minus the step's own penalty (spec: `s[i,t]`)."""
        return self.episode_return[self.episode] - self.penalty

    @cached_property
    def observation_codes(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Observations as integers, made once a batch: hashing text is the dearest part of most estimators.

        Returns (codes of the steps, codes of the final observations or -1, the text of each code). Equal text, equal
        code, for steps and final observations alike; codes count up in the order of first sight.
        """
        steps, finals = self.observation.tolist(), self.final_observation.tolist()
        known = [text for text in finals if text is not None]
        index = {text: code for code, text in enumerate(dict.fromkeys([*steps, *known]))}
        step = np.fromiter(map(index.__getitem__, steps), np.int64, len(steps))
        final = np.fromiter((-1 if text is None else index[text] for text in finals), np.int64, len(finals))
        return step, final, list(index)

    def select(self, rows: np.ndarray) -> StepBatch:
        """The batch with these steps only (indices, ascending); the columns of episodes stay as they are."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _STEP_COLUMNS})

    @cached_property
    def blocks(self) -> list[StepBatch]:
        """The batch in consecutive pieces of whole groups, of `BLOCK` steps or few more.

        What looks at one group at a time is faster on pieces that stay in the processor's cache, and takes twice the
        time for twice the groups. A batch whose groups or episodes are not consecutive is one piece, itself.
        """
        starts = np.flatnonzero(np.diff(self.episode_group)) + 1
        consecutive = len(np.unique(self.episode_group)) == len(starts) + 1 and (np.diff(self.episode) >= 0).all()
        if len(self) <= BLOCK or not consecutive:
            return [self]
        rows = np.searchsorted(self.episode, [0, *starts])
        # The first group that begins in each stretch of BLOCK steps begins a piece.
        first = np.flatnonzero(np.diff(rows // BLOCK, prepend=-1))
        edges = np.array([0, *starts, self.n_episodes])[[*first, len(starts) + 1]]
        cuts = np.searchsorted(self.episode, edges)
        return [self._piece(slice(*edges[i : i + 2]), slice(*cuts[i : i + 2])) for i in range(len(first))]

    def _piece(self, episodes: slice, rows: slice) -> StepBatch:
        columns = {name: getattr(self, name)[rows] for name in _STEP_COLUMNS}
        columns["episode"] = columns["episode"] - episodes.start
        return StepBatch(**columns, **{name: getattr(self, name)[episodes] for name in _EPISODE_COLUMNS})

    @classmethod
    def from_episodes(
        cls, episodes: Sequence[Episode], *, invalid_action_penalty: float = 0.0, invalid_action: str = "format"
    ) -> StepBatch:
        """Columns of `episodes`, in their order.

        invalid_action: which flag makes a step invalid: "format" (as published), "admissible", or "either" of them.
        Raises ValueError naming the episode when a reward or return is not finite.
        """
        sizes = [0 if e.dropped else len(e.steps) for e in episodes]
        steps = [s for e in episodes if not e.dropped for s in e.steps]
        reward = np.array([s.reward for s in steps], np.float64)
        returns = np.array([0.0 if e.dropped else e.episode_return for e in episodes], np.float64)
        ends = np.cumsum(sizes) - 1
        for i, e in enumerate(episodes):
            if sizes[i] and e.extra_rewards:
                reward[ends[i]] += math.fsum(e.extra_rewards.values())
        _check_finite(episodes, sizes, reward, returns)
        format_valid = np.array([s.format_valid for s in steps], bool)
        admissible = np.array([s.admissible for s in steps], bool)
        valid = {"format": format_valid, "admissible": admissible, "either": format_valid & admissible}[invalid_action]
        episode = np.repeat(np.arange(len(episodes)), sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if sizes else np.zeros(0, np.int64)
        return cls(
            episode=episode,
            step=np.arange(len(steps)) - starts[episode] if steps else np.zeros(0, np.int64),
            observation=_strings([s.observation for s in steps]),
            action=_strings([s.action for s in steps]),
            reward=reward,
            penalty=np.where(valid, 0.0, float(invalid_action_penalty)),
            format_valid=format_valid,
            admissible=admissible,
            episode_group=np.array([e.group for e in episodes], np.int64),
            episode_return=returns,
            environment_return=np.array([0.0 if e.dropped else e.environment_return for e in episodes], np.float64),
            success=np.array([e.success for e in episodes], bool),
            dropped=np.array([e.dropped for e in episodes], bool),
            final_observation=_strings([e.final_observation for e in episodes]),
        )


def _strings(values: Sequence[str | None]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _check_finite(episodes, sizes, reward, returns) -> None:
    bad = set(np.flatnonzero(~np.isfinite(returns)).tolist())
    bad |= set(np.repeat(np.arange(len(episodes)), sizes)[~np.isfinite(reward)].tolist())
    if bad:
        e = episodes[min(bad)]
        raise ValueError(
            f"episode {e.index} of task {e.task_id!r} (group {e.group}) has a reward that is not finite "
            f"(return {e.episode_return}); {len(bad)} such episode(s). Rewards must be numbers: fix the environment "
            "or the reward function."
        )
