"""The loop that plays episodes: environments, contexts and generation, turn by turn."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Protocol

import numpy as np

from progpo_trl.actions import Projection, project
from progpo_trl.contexts import FullContext, TurnView, WindowContext
from progpo_trl.environments.base import Environment, Observation, OpenCommand, StepResult, TaskSet, is_admissible
from progpo_trl.episodes import Episode, Step, StopReason
from progpo_trl.generation import TurnOutput

# (live episodes of this process, their prompt ids) -> one output each. On backends that need it, all processes call
# it together, some with no episodes.
GenerateTurn = Callable[[Sequence[Episode], Sequence[np.ndarray]], list[TurnOutput]]


class TurnRequests(Protocol):
    """Turns asked for one by one: answers come back in the order they are ready, each with the episode it is for."""

    def send(self, episode: Episode, prompt_ids: np.ndarray) -> None: ...

    def receive(self) -> tuple[Episode, TurnOutput]: ...


@dataclass
class RolloutClock:
    """CPU and wall seconds by phase: environment, prompts, generation, decoding."""

    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str):
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
            self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu


@dataclass(slots=True)
class _Live:
    """An episode being played."""

    episode: Episode
    environment: Environment
    observation: str
    admissible: tuple[str, ...] | None
    prompt: np.ndarray | None = None


def play(
    episodes: Sequence[Episode],
    tasks: TaskSet,
    context: WindowContext | FullContext,
    generate: GenerateTurn,
    decode: Callable[[list[np.ndarray]], list[str]],
    *,
    max_turns: int,
    step_limit: int,
    action_format: str,
    any_live: Callable[[bool], bool] = bool,
    clock: RolloutClock | None = None,
    on_done: Callable[[Episode], None] = lambda episode: None,
) -> None:
    """Play fresh `episodes` (task id and seed set) to their end, in place and in lock-step.

    max_turns: actions we play at most; step_limit: where an episode that the environment ends counts as cut by the
    limit. any_live: "does any process still play?", asked once a turn, so that every process makes equally many calls
    of `generate`. An environment that raises, or returns something else than the contract says, ends its episode with
    stop reason ENVIRONMENT_ERROR. on_done is called with every finished episode.
    """
    clock = clock or RolloutClock()
    read_action, finish = _reader(tasks, action_format), _finisher(tasks, on_done)
    with clock.phase("environment"):
        live = [one for e in episodes if (one := _start(e, tasks, finish)) is not None]
    for _ in range(max_turns):
        with clock.phase("prompts"):
            live = _write_prompts(live, context, max_turns, finish)
        if not any_live(bool(live)):
            return
        with clock.phase("generation"):
            outputs = generate([one.episode for one in live], [one.prompt for one in live])
        live = _play_turns(live, outputs, decode, read_action, step_limit, clock, finish)
    for one in live:
        _stop_at_limit(one, finish)


def play_streaming(
    episodes: Sequence[Episode],
    tasks: TaskSet,
    context: WindowContext | FullContext,
    requests: TurnRequests,
    decode: Callable[[list[np.ndarray]], list[str]],
    *,
    max_turns: int,
    step_limit: int,
    action_format: str,
    at_once: int | None = None,
    clock: RolloutClock | None = None,
    on_done: Callable[[Episode], None] = lambda episode: None,
) -> None:
    """As `play`, but no episode waits for another: its next request goes out once its environment has answered.

    at_once: episodes under way at most, None for all; another begins when one ends. Environments are reset and
    stepped one at a time in the calling thread; only requests run beside each other. Nothing here is collective: each
    process plays its own episodes at its own pace.
    """
    clock = clock or RolloutClock()
    read_action, finish = _reader(tasks, action_format), _finisher(tasks, on_done)
    asked: dict[int, _Live] = {}

    def ask(one: _Live) -> None:
        with clock.phase("prompts"):
            kept = _write_prompts([one], context, max_turns, finish)
        for one in kept:
            asked[id(one.episode)] = one
            requests.send(one.episode, one.prompt)

    waiting = iter(episodes)

    def begin() -> None:
        while at_once is None or len(asked) < at_once:
            episode = next(waiting, None)
            if episode is None:
                return
            with clock.phase("environment"):
                one = _start(episode, tasks, finish)
            if one is not None:
                ask(one)

    begin()
    while asked:
        with clock.phase("generation"):
            episode, output = requests.receive()
        one = asked.pop(id(episode))
        going = _play_turns([one], [output], decode, read_action, step_limit, clock, finish)
        if going and len(episode.steps) < max_turns:
            ask(one)
        elif going:
            _stop_at_limit(one, finish)
        begin()


def _reader(tasks: TaskSet, action_format: str) -> Callable[[str], Projection]:
    """How the action is read from a response."""
    return partial(project, action_format=action_format, fallback_characters=tasks.fallback_characters)


def _finisher(tasks: TaskSet, on_done: Callable[[Episode], None]) -> Callable[[Episode], None]:
    """`on_done`, after what the episode never reported is noted."""

    def finish(episode: Episode) -> None:
        reported = {key for step in episode.steps for key in step.info}
        episode.unreported = {key: value for key, value in tasks.unreported.items() if key not in reported}
        on_done(episode)

    return finish


def _play_turns(live, outputs, decode, read_action, step_limit: int, clock, on_done) -> list[_Live]:
    """Play one sampled turn of each of `live`; those that go on."""
    with clock.phase("decoding"):
        unread = [out.ids for out in outputs if out.text is None]
        read = iter(decode(unread) if unread else ())
        texts = [next(read) if out.text is None else out.text for out in outputs]
    with clock.phase("environment"):
        turns = zip(live, outputs, texts, strict=True)
        moved = [_move(one, output, text, read_action, step_limit) for one, output, text in turns]
    for one, going in zip(live, moved, strict=True):
        if not going:
            on_done(one.episode)
    return [one for one, going in zip(live, moved, strict=True) if going]


def _stop_at_limit(one: _Live, on_done) -> None:
    one.episode.stop_reason = StopReason.STEP_LIMIT
    on_done(one.episode)


def _start(episode: Episode, tasks: TaskSet, on_done) -> _Live | None:
    try:
        environment = tasks.make()
        first = environment.reset(episode.task_id, episode.seed)
        if not isinstance(first, Observation):
            raise TypeError(f"reset() returned {type(first).__name__}, not an Observation")
        text, admissible, task = _text(first.text), _commands(first.admissible), _text(first.task)
    except Exception as error:  # noqa: BLE001
        # Whatever an environment raises costs one episode, never the run; the trainer counts and reports it.
        _crash(episode, error)
        on_done(episode)
        return None
    episode.task = task
    return _Live(episode, environment, text, admissible)


def _write_prompts(live: list[_Live], context, max_turns: int, on_done) -> list[_Live]:
    views = [TurnView(o.observation, o.admissible, o.episode.task, o.episode.steps, max_turns) for o in live]
    kept = []
    for one, prompt in zip(live, context.prompts(views) if views else [], strict=True):
        if prompt is None:
            one.episode.stop_reason = StopReason.CONTEXT_LIMIT
            on_done(one.episode)
        else:
            one.prompt = prompt
            kept.append(one)
    return kept


def _move(
    one: _Live, output: TurnOutput, response: str, read_action: Callable[[str], Projection], step_limit: int
) -> bool:
    """Play one sampled turn; True while the episode goes on."""
    episode = one.episode
    action, format_valid = read_action(response)
    try:
        admissible = is_admissible(action, one.admissible)
        result = one.environment.step(action)
        if not isinstance(result, StepResult):
            raise TypeError(f"step() returned {type(result).__name__}, not a StepResult")
        if not isinstance(result.info, dict):
            raise TypeError(f"StepResult.info must be a dict, got {result.info!r}")
        text, commands, reward = _text(result.text), _commands(result.admissible), _number(result.reward)
        done, success = _flag("done", result.done), _flag("success", result.success)
        info = {str(key): value for key, value in result.info.items()}
    except Exception as error:  # noqa: BLE001
        _crash(episode, error)
        return False
    step = Step(
        observation=one.observation,
        context_ids=one.prompt,
        completion_ids=output.ids,
        logprobs=output.logprobs,
        response=response,
        action=action,
        format_valid=format_valid,
        admissible=admissible,
        reward=reward,
        truncated=output.truncated,
        info=info,
    )
    episode.steps.append(step)
    episode.final_observation = text
    episode.success = episode.success or success
    if done:
        # Environments with a step limit of their own end the episode at it.
        failure = StopReason.STEP_LIMIT if len(episode.steps) >= step_limit else StopReason.FAILURE
        episode.stop_reason = StopReason.SUCCESS if success else failure
        return False
    one.observation, one.admissible = text, commands
    return True


def _text(value) -> str:
    """`value` as a plain text the tokenizer takes; lone surrogates become '?'."""
    if not isinstance(value, str):
        raise TypeError(f"an observation must be text, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode()
    return str.__str__(value)  # of a subclass with its own ideas of equality or hash


def _commands(value) -> tuple[str, ...] | None:
    """`value` as a tuple of commands, or None."""
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or not all(isinstance(command, str) for command in value):
        raise TypeError(f"admissible must be a tuple of texts or None, got {value!r}")
    return tuple(_open(command) if isinstance(command, OpenCommand) else _text(command) for command in value)


def _open(command: OpenCommand) -> OpenCommand:
    """`command` if its pattern can be asked for every action."""
    try:
        re.compile(command.pattern)
    except Exception as error:
        raise TypeError(
            f"the pattern of {str(command)!r} must be a regular expression, got {command.pattern!r}: {error}"
        ) from error
    text = _text(command)
    return command if text == command else OpenCommand(text, command.pattern)


def _flag(name: str, value) -> bool:
    """`value` as true or false; a text such as "False" is neither."""
    if value is None or isinstance(value, (np.bool_, Real)) or getattr(value, "shape", None) in ((), (1,)):
        return bool(value)
    raise TypeError(f"{name} must be true or false, got {value!r}")


def _number(value) -> float:
    """`value` as a float; whether it is finite is asked where the episode can be named."""
    if isinstance(value, str) or value is None:
        raise TypeError(f"a reward must be a number, got {value!r}")
    return float(value)


def _crash(episode: Episode, error: Exception) -> None:
    episode.stop_reason = StopReason.ENVIRONMENT_ERROR
    episode.error = f"{type(error).__name__}: {error}"
