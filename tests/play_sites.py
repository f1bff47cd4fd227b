"""Environments and page servers for the tests of `progpo play`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from progpo_trl.cli import _parser
from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult, TaskSet
from progpo_trl.play.command import player_maker, splits
from progpo_trl.play.site import PlaySite
from progpo_trl.web.server import LocalServer, Site

EVIL = "<script>alert('&')</script>\"'><img src=x onerror=alert(1)>\x1b]0;owned\x07\x00\r\ud800</p></button>"


class Hostile(Environment):
    """Says what would act on a page or a terminal that shows it as it is; the step "end" ends it with success."""

    action_format = "think_action"
    max_steps = 4

    def reset(self, task_id: str, seed: int = 0) -> Observation:
        if not task_id.startswith("task"):
            raise KeyError(f"no task {task_id!r}")
        return Observation(f"start {EVIL}", (f"do {EVIL}", "end"), f"task {EVIL}")

    def step(self, action: str) -> StepResult:
        won = action == "end"
        return StepResult(f"after {action} {EVIL}", (f"do {EVIL}", "end"), float(won), won, won)


def hostile_tasks() -> TaskSet:
    return EnvironmentTasks(Hostile, ["task-0", f"task-{EVIL}"], name=f"hostile {EVIL}")


def play_site(tasks: TaskSet, *words: str, **options) -> PlaySite:
    """The site that `progpo play ... WORDS --serve` has, for any tasks."""
    args = _parser(["play"]).parse_args(["play", "alfworld_generated", *words])
    there = splits(tasks)
    split = args.split or (tasks.eval_split if tasks.eval_split in there else there[-1])
    return PlaySite(player_maker(tasks, split, args), tasks, there, split, **options)


@contextmanager
def serving(site: Site) -> Iterator[LocalServer]:
    """A server of `site` on a free port while the block runs."""
    server = LocalServer(site)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def within(n: int, done: Callable[[], bool], act: Callable[[], None]) -> bool:
    """Whether `done` within `n` acts."""
    for _ in range(n):
        if done():
            return True
        act()
    return done()


def exit_code(pid: int, seconds: float = 240) -> int:
    """Exit code of a child, negative for signals; one that does not end in time is killed, and the test fails."""
    end = time.monotonic() + seconds
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"the program did not end within {seconds:g} s")
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])
