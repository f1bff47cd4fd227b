"""The pages of `progpo play --serve`: one episode a page, any number of them side by side."""

from __future__ import annotations

import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from progpo_trl.environments.base import OpenCommand, TaskSet
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.play.errors import DATA_ERRORS
from progpo_trl.play.hints import hint
from progpo_trl.play.player import Player
from progpo_trl.play.record import EpisodeFile, Keeper
from progpo_trl.play.shop_page import shop_page
from progpo_trl.web.pages import render, visible
from progpo_trl.web.server import Request, RequestError, Response, Site

MOST_EPISODES = 32  # open at once; the one that was not used for longest gives way
_LONGEST_QUERY = 400  # characters; an action has 500
_OFFERED = 200  # task ids that a page offers to choose from
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
_PATH = re.compile(r"/play/([\w-]{4,40})(?:/(step|undo|restart))?", re.ASCII)

logger = logging.getLogger(__name__)


@dataclass
class _Open:
    """An open episode. split: another task is of this one, too; changes: how often the episode was changed, which a
    page's forms name as the state they were made for."""

    player: Player
    keeper: Keeper
    split: str
    changes: int = 0


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
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def begin(self, task_id: str | None = None, split: str | None = None) -> str:
        """Start an episode; returns the path of its page. KeyError for an unknown task or split."""
        split = self.split if split is None else split
        player = self.make(task_id, split)
        name = secrets.token_urlsafe(9)
        while len(self._open) >= MOST_EPISODES:
            self._leave(next(iter(self._open)))
        self._open[name] = _Open(player, Keeper(self.file), split)
        return f"/play/{name}"

    def close(self) -> None:
        """Save what was played of the open episodes."""
        with self._lock:
            for name in list(self._open):
                self._leave(name)

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        with self._lock:
            try:
                return self._respond(request)
            except DATA_ERRORS as error:
                raise RequestError(500, f"The environment's files are damaged: {error}") from None

    def _respond(self, request: Request) -> Response:
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
        except DATA_ERRORS:
            raise
        except (KeyError, ValueError) as error:
            problem = str(error.args[0]) if error.args else "There is no such task."
            return Response(self._start_page(problem, split, task_id), 404)

    def _act(self, name: str, what: str, form: dict[str, str]) -> Response:
        one = self._open[name]
        # Another tab may have played on, or a button was pressed twice: what was not seen is not acted on.
        if form.get("at") != str(one.changes):
            notice = "Nothing was played: this episode went on elsewhere. Here is how it stands now."
            return Response(self._play_page(name, notice), 409)
        if what == "undo":
            one.player.undo()
        elif what == "restart":
            self._keep(one)
            one.player.restart()
            one.keeper = Keeper(self.file)
        else:
            try:
                one.player.play(_action(form, one.player.turn.admissible or ()))
            except DATA_ERRORS:
                raise
            except ValueError as error:
                return Response(self._play_page(name, f"Nothing was played: {error}."), 400)
            if one.player.done:
                self._keep(one)
        one.changes += 1
        return _see(f"/play/{name}")

    def _leave(self, name: str) -> None:
        self._keep(self._open.pop(name))

    def _keep(self, one: _Open) -> None:
        try:
            one.keeper.keep(one.player.episode)
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
            offered=_typable(ids[:_OFFERED]),
            problem=problem,
            episodes=[_summary(name, one.player) for name, one in reversed(self._open.items())],
        )

    def _play_page(self, name: str, notice: str = "", with_hint: bool = False) -> str:
        one, player = self._open[name], self._open[name].player
        shop = isinstance(player.environment, WebshopEnvironment)
        listed = player.turn.admissible or ()
        return render(
            "play.html",
            token=self.token,
            path=f"/play/{name}",
            environment=self.tasks.name,
            split=one.split,
            player=player,
            episode=player.episode,
            at=one.changes,
            shop=shop_page(player.environment.session) if shop else None,
            commands={} if shop else _by_verb(listed),
            numbers={command: number for number, command in enumerate(listed)},
            typable=_typable(listed),
            first=player.turns[0].observation,
            steps=[
                (step, turn.observation) for step, turn in zip(player.episode.steps, player.turns[1:], strict=True)
            ],
            prompt=player.prompt(),
            show_prompt=self.show_prompt,
            expert=self.expert,
            hint=(hint(player) or "does not know") if with_hint and self.expert and not player.done else "",
            outcome=player.outcome(),
            notice=notice,
            saved_to=str(self.file.path) if self.file else "",
        )


def _action(form: dict[str, str], listed: Sequence[str]) -> str:
    """The action of a form: as it is, the one of the listed commands that has a number, or a search box's.

    Buttons send numbers, as HTML cannot send every text back as it was.
    """
    if "command" in form:
        number = form["command"]
        if not _NUMBER.fullmatch(number) or int(number) >= len(listed):
            raise ValueError("there is no such command")
        return listed[int(number)]
    if "query" in form:
        # Brackets are the action's own.
        query = " ".join(form["query"].translate(str.maketrans("[]", "  ")).split())[:_LONGEST_QUERY]
        if not query:
            raise ValueError("a search needs words")
        return f"search[{query}]"
    return form.get("action", "")


def _by_verb(commands: Sequence[str]) -> dict[str, list[str]]:
    """Commands that can be clicked, in the order given, by their first word; those of one word under "other"."""
    groups: dict[str, list[str]] = {}
    for command in commands:
        if not isinstance(command, OpenCommand):
            verb, _, rest = command.partition(" ")
            groups.setdefault(verb if rest else "other", []).append(command)
    return groups


def _typable(texts: Sequence[str]) -> list[str]:
    """Those that can be typed as they are shown."""
    return [text for text in texts if visible(text) == text]


def _summary(name: str, player: Player) -> dict[str, Any]:
    n = len(player.episode.steps)
    state = player.episode.stop_reason.value.replace("_", " ") if player.done else "being played"
    return {"path": f"/play/{name}", "task": player.episode.task or player.task_id, "steps": n, "state": state}


def _see(path: str) -> Response:
    return Response(status=303, location=path)
