"""The pages of `progpo view`: the page itself, and what its script asks for."""

from __future__ import annotations

import re
from threading import Lock
from typing import Any

from progpo_trl.viewer.document import as_json, document
from progpo_trl.viewer.index import FileChangedError
from progpo_trl.viewer.page import page, policy
from progpo_trl.viewer.records import for_page
from progpo_trl.viewer.sources import RunFolder
from progpo_trl.web.server import Request, RequestError, Response, Site

LONGEST = 20_000  # characters of a text that are sent with its episode; the rest is fetched when it is asked for
MOST_ROWS = 64  # episodes of one answer
LONGEST_QUERY = 400  # characters
_JSON = "application/json; charset=utf-8"
_CHANGED = "The file was rewritten since this page was loaded. Load it again."


class ViewSite(Site):
    """Shows one run. The files are looked at again whenever the page is loaded."""

    def __init__(self, run: RunFolder):
        super().__init__()
        self.run = run
        self._lock = Lock()  # of the indexes
        self._document: str | None = None

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        if request.method != "GET":
            raise RequestError(405, "This site is for reading.")
        if request.path == "/":
            return Response("".join(page(self.run.name, exported=False)), policy=policy(True))
        answers = {
            "/run.json": self._run,
            "/episodes.json": self._episodes,
            "/text.json": self._text,
            "/search.json": self._search,
        }
        if request.path not in answers:
            raise RequestError(404, "There is no such page.")
        try:
            return Response(answers[request.path](request.query), content_type=_JSON)
        except FileChangedError:
            raise RequestError(409, _CHANGED) from None
        except IndexError:
            raise RequestError(404, "There is no such episode.") from None
        except OSError as error:
            raise RequestError(404, f"The file cannot be read: {error.strerror or error}.") from None

    def _run(self, query: dict[str, str]) -> str:
        with self._lock:
            changed = [source.index.refresh() for source in self.run.sources]
            if self._document is None or any(changed):
                self._document = as_json(document(self.run))
            return self._document

    def _episodes(self, query: dict[str, str]) -> str:
        rows = [_whole(text) for text in query.get("rows", "").split(",", MOST_ROWS)]
        if len(rows) > MOST_ROWS:
            raise RequestError(400, f"At most {MOST_ROWS} episodes at once.")
        return as_json([for_page(self._record(query, row), LONGEST) for row in rows])

    def _text(self, query: dict[str, str]) -> str:
        """One text in full. step: its number, or "" for one of the episode; field: its name."""
        holder: Any = self._record(query, _whole(query.get("row", "")))
        if query.get("step"):
            holder = holder["steps"][_whole(query["step"])]
        text = holder.get(query.get("field", ""))
        if not isinstance(text, str):
            raise RequestError(404, "There is no such text.")
        return as_json(text)

    def _search(self, query: dict[str, str]) -> str:
        text = query.get("q", "")
        if not 0 < len(text) <= LONGEST_QUERY:
            raise RequestError(400, f"A search needs 1 to {LONGEST_QUERY} characters.")
        index = self._index(query)
        return as_json([row for row in index.scan(text) if row is not None])

    def _record(self, query: dict[str, str], row: int) -> dict[str, Any]:
        return self._index(query).record(row)

    def _index(self, query: dict[str, str]):
        return self.run.sources[_whole(query.get("source", "0"))].index


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise RequestError(400, "A number was expected.")
    return int(text)
