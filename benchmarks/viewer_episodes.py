"""Runs to look at: generated ALFWorld games, played by an expert that errs less and less, with long thoughts.

The advantages are those that ProGPO over GiGPO gives; nothing is trained. `benchmarks/viewer.py`, the viewer's tests
and the picture in docs/viewing.md use it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from progpo_trl.advantages import GiGPO, ProGPO
from progpo_trl.environments import TaskSet, load_environment
from progpo_trl.environments.alfworld.expert import SearchingExpert
from progpo_trl.episodes import Episode, Step, StepBatch, StopReason

CONFIG = """\
model_name_or_path: an expert that errs
environment:
  name: alfworld_generated
  level: {level}
advantage:
  name: gigpo
progress_fallback:
  lambda_aux: 0.3
num_generations: {rollouts}
groups_per_generation: {groups}
seed: {seed}
"""
_EMPTY = np.empty(0, np.int32)
_THOUGHTS = (
    "I should think about where a {target} is usually kept, and look in the nearest of these places first.",
    "So far I have not seen any {target}, which leaves the places that I have not opened yet.",
    "The last observation says: {seen}",
    "My goal is to deal with the {target} and bring it to the right place, so I need to find it before anything else.",
    "It would be a waste of steps to go back to where I have already been, unless I forgot something there.",
    "I have used {n} steps until now, and the episode does not last forever.",
    "If this does not work I will go on with the next receptacle in the list and come back later.",
    "The command has to be one of the admissible ones, otherwise nothing happens.",
    "Opening things that are closed is worth a step, because objects are often inside.",
    "A careful search, one receptacle after the other, finds the {target} in the end.",
    "Perhaps the {target} is right here; let me look at what is in front of me again.",
    "After this I must not forget what the task asks for besides finding the {target}.",
)


def play(tasks: TaskSet, task_id: str, rng: random.Random, noise: float, steps: int) -> Episode:
    """One episode: a share `noise` of the actions is drawn at random, and some responses lose their form."""
    environment = tasks.make()
    seen = environment.reset(task_id)
    episode = Episode(task_id, tasks.task_type(task_id), task=seen.task or seen.text.rsplit("to: ", 1)[-1])
    expert = SearchingExpert(seen.text, rng)
    text, admissible = seen.text, seen.admissible
    for n in range(steps):
        action = expert.act(admissible)
        if action is None or rng.random() < noise:
            action = rng.choice(admissible) if rng.random() < 0.9 else "go to the moon 1"
        thought = " ".join(rng.sample(_THOUGHTS, 4)).format(target=expert.task.target, seen=text.split("\n")[-1], n=n)
        valid = rng.random() >= noise / 10
        response = f"<think>{thought}</think>" + (f"<action>{action}</action>" if valid else action)
        listed = action in admissible
        result = environment.step(action)
        episode.steps.append(
            Step(
                text,
                _EMPTY,
                np.zeros(len(response) // 4, np.int32),
                None,
                response,
                action,
                valid,
                listed,
                result.reward,
            )
        )
        expert.observe(action, result.text)
        text, admissible = result.text, result.admissible
        if result.done:
            break
    episode.success = bool(result.success)
    episode.stop_reason = StopReason.SUCCESS if result.success else StopReason.STEP_LIMIT
    episode.final_observation = text
    return episode


def write_run(
    folder: Path,
    generations: int,
    groups: int = 10,
    rollouts: int = 8,
    *,
    level: str = "hard",
    steps: int = 30,
    seed: int = 0,
    evaluated: int = 0,
    on_episode: Callable[[int], object] = lambda n: None,
) -> None:
    """Write config.yaml and episodes.jsonl of a run, and with `evaluated` an evaluation of so many training tasks."""
    rng = random.Random(seed)
    tasks = load_environment("alfworld_generated", level=level)
    ids = list(tasks.task_ids("train"))
    estimator = ProGPO(GiGPO())
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(level=level, rollouts=rollouts, groups=groups, seed=seed)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    with open(folder / "episodes.jsonl", "w", encoding="utf-8") as file:
        for generation in range(generations):
            noise = 0.85 - 0.6 * generation / max(1, generations - 1)
            episodes = []
            for group in range(groups):
                task_id = ids[(generation * groups + group) % len(ids)]
                skill = min(1.0, max(0.0, noise + rng.uniform(-0.15, 0.15)))
                for _ in range(rollouts):
                    one = play(tasks, task_id, rng, skill, steps)
                    episodes.append(replace(one, group=group, index=len(episodes), seed=seed))
            batch = StepBatch.from_episodes(episodes, invalid_action_penalty=0.1)
            parts = np.split(estimator(batch), np.cumsum([len(e.steps) for e in episodes])[:-1])
            for e, advantages in zip(episodes, parts, strict=True):
                e.advantages = advantages
            file.writelines(json.dumps({"step": generation, **e.to_json()}) + "\n" for e in episodes)
            on_episode(len(episodes))
    if evaluated:
        _write_evaluation(folder / "evaluation", tasks, ids[:evaluated], rng, steps)


def _write_evaluation(folder: Path, tasks: TaskSet, ids: list[str], rng: random.Random, steps: int) -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / "episodes.jsonl", "w", encoding="utf-8") as file:
        for seed in range(2):
            for task_id in ids:
                episode = replace(play(tasks, task_id, rng, 0.3, steps), seed=seed)
                game = {"split": "train", "task_id": task_id, "temperature": 0.4, "seed": seed}
                file.write(json.dumps({**episode.to_json(), "game": game}) + "\n")
