"""The pages of `progpo play --serve`: one episode a page, any number of them side by side."""

from __future__ import annotations

import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby
from threading import Lock
from typing import Any

from progpo_trl.environments.base import OpenCommand, TaskSet
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.play.hints import hint
from progpo_trl.play.player import Player
from progpo_trl.play.record import EpisodeFile, Keeper
from progpo_trl.play.shop_page import shop_page
from progpo_trl.web.pages import render
from progpo_trl.web.server import Request, RequestError, Response, Site

MOST_EPISODES = 32  # open at once; the one that was not used for longest gives way
_OFFERED = 200  # task ids that a page offers to choose from
_PATH = re.compile(r"/play/([\w-]{4,40})(?:/(step|undo|restart))?", re.ASCII)

logger = logging.getLogger(__name__)


class PlaySite(Site):
    """Episodes by an id in their address, so that each tab has its own; tabs of one episode see the same one.

    make: an episode of a task id and a split, each optional (KeyError for ids there are not); splits: to choose from;
    split: chosen at first; file: where episodes are saved when they end, or when they are left with steps in them.
    """

    def __init__(
        self,
        make: Callable[..., Player],
        tasks: TaskSet,
        splits: Sequence[str],
        split: str,
        *,
        expert: bool = False,
        show_prompt: bool = False,
        file: EpisodeFile | None = None,
    ):
        super().__init__()
        self.make, self.tasks, self.splits, self.split = make, tasks, list(splits), split
        self.expert, self.show_prompt, self.file = expert, show_prompt, file
        # One person plays, so one lock for everything costs nothing, and environments need not know of threads.
        self._lock = Lock()
        self._open: OrderedDict[str, tuple[Player, Keeper]] = OrderedDict()

    def begin(self, task_id: str | None = None, split: str | None = None) -> str:
        """Start an episode; returns the path of its page. KeyError for an unknown task or split."""
        player = self.make(task_id, self.split if split is None else split)
        name = secrets.token_urlsafe(9)
        while len(self._open) >= MOST_EPISODES:
            self._leave(next(iter(self._open)))
        self._open[name] = player, Keeper(self.file)
        return f"/play/{name}"

    def close(self) -> None:
        """Save what was played of the open episodes."""
        with self._lock:
            for name in list(self._open):
                self._leave(name)

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        with self._lock:
            if request.path == "/" and request.method == "GET":
                return Response(self._start_page())
            if request.path == "/start" and request.method == "POST":
                return self._start(request.form)
            found = _PATH.fullmatch(request.path)
            if found is None:
                raise RequestError(404, "There is no such page.")
            name, what = found.groups()
            if name not in self._open:
                raise RequestError(404, "There is no such episode (any more). The first page starts another one.")
            self._open.move_to_end(name)
            if (request.method == "GET") != (what is None):
                raise RequestError(405, "This address is for a form." if what else "This address is for reading.")
            if what is None:
                return Response(self._play_page(name, notice="", with_hint="hint" in request.query))
            return self._act(name, what, request.form)

    def _start(self, form: dict[str, str]) -> Response:
        split, task_id = form.get("split", self.split), form.get("task", "").strip()
        try:
            return _see(self.begin(task_id or None, split))
        except (KeyError, ValueError) as error:
            problem = str(error.args[0]) if error.args else "There is no such task."
            return Response(self._start_page(problem, split, task_id), 404)

    def _act(self, name: str, what: str, form: dict[str, str]) -> Response:
        player, keeper = self._open[name]
        # Another tab may have played on, or a button was pressed twice: what was not seen is not acted on.
        if form.get("at") != str(len(player.episode.steps)):
            notice = "Nothing was played: this episode went on elsewhere. Here is how it stands now."
            return Response(self._play_page(name, notice), 409)
        if what == "undo":
            player.undo()
        elif what == "restart":
            self._keep(player, keeper)
            player.restart()
            self._open[name] = player, Keeper(self.file)
        else:
            try:
                player.play(_action(form))
            except ValueError as error:
                return Response(self._play_page(name, f"Nothing was played: {error}."), 400)
            if player.done:
                self._keep(player, keeper)
        return _see(f"/play/{name}")

    def _leave(self, name: str) -> None:
        self._keep(*self._open.pop(name))

    def _keep(self, player: Player, keeper: Keeper) -> None:
        try:
            keeper.keep(player.episode)
        except OSError as error:
            logger.warning("an episode was not saved: %s: %s", self.file.path, error.strerror or error)

    def _start_page(self, problem: str = "", split: str | None = None, task_id: str = "") -> str:
        split = split if split in self.splits else self.split
        ids = self.tasks.task_ids(split)
        return render(
            "play_start.html",
            token=self.token,
            environment=self.tasks.name,
            splits=[(name, len(self.tasks.task_ids(name))) for name in self.splits],
            split=split,
            task_id=task_id,
            offered=list(ids[:_OFFERED]),
            problem=problem,
            episodes=[_summary(name, player) for name, (player, _) in reversed(self._open.items())],
        )

    def _play_page(self, name: str, notice: str = "", with_hint: bool = False) -> str:
        player, _ = self._open[name]
        shop = isinstance(player.environment, WebshopEnvironment)
        return render(
            "play.html",
            token=self.token,
            path=f"/play/{name}",
            environment=self.tasks.name,
            split=self.split,
            player=player,
            episode=player.episode,
            at=len(player.episode.steps),
            shop=shop_page(player.environment.session) if shop else None,
            commands=[] if shop else _by_verb(player.turn.admissible or ()),
            turns=[(i, step, player.turns[i].observation) for i, step in enumerate(player.episode.steps, start=1)],
            prompt=player.prompt(),
            show_prompt=self.show_prompt,
            expert=self.expert,
            hint=(hint(player) or "does not know") if with_hint and self.expert and not player.done else "",
            outcome=player.outcome(),
            notice=notice,
            saved_to=str(self.file.path) if self.file else "",
        )


def _action(form: dict[str, str]) -> str:
    """The action of a form: as it is, or what a search box was given."""
    if "query" in form:
        # Brackets are the action's own.
        query = " ".join(form["query"].translate(str.maketrans("[]", "  ")).split())
        if not query:
            raise ValueError("a search needs words")
        return f"search[{query}]"
    return form.get("action", "")


def _by_verb(commands: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Commands that can be clicked by their first word, both in the order given."""
    verbs = list(dict.fromkeys(command.split(" ")[0] for command in commands))
    plain = [command for command in commands if not isinstance(command, OpenCommand)]
    plain.sort(key=lambda command: verbs.index(command.split(" ")[0]))
    return [(verb, list(group)) for verb, group in groupby(plain, key=lambda command: command.split(" ")[0])]


def _summary(name: str, player: Player) -> dict[str, Any]:
    n = len(player.episode.steps)
    state = player.episode.stop_reason.value.replace("_", " ") if player.done else "being played"
    return {"path": f"/play/{name}", "task": player.episode.task or player.task_id, "steps": n, "state": state}


def _see(path: str) -> Response:
    return Response(status=303, location=path)
