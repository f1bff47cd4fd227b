"""History -> prompt ids: the templates, the window and full contexts, and chat-template deltas.

A prompt is built from text, but what the policy sampled stays what it sampled: full context appends the sampled ids
and the tokens the chat template puts between two turns; nothing sampled is ever re-tokenised. Special tokens that are
spelled out in an observation or an action are text there (see `PlainText`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from progpo_trl.chat_delta import ChatDelta, rendered
from progpo_trl.episodes import Step
from progpo_trl.memo import Memo
from progpo_trl.plain_text import PlainText

PROMPTS = Path(__file__).parent / "prompts"
ELLIPSIS = " ..."  # ends an observation that was cut


@dataclass(slots=True)
class TurnView:
    """What a prompt is built from: the current observation and the steps played so far.

    cut: text was left out of the observation or of the commands so that the prompt fits.
    """

    observation: str
    admissible: tuple[str, ...] | None
    task: str
    steps: Sequence[Step]
    max_steps: int
    cut: bool = False


@dataclass(slots=True)
class HistoryEntry:
    """A past step as a template sees it; `index` is 1-based."""

    index: int
    observation: str
    action: str


class PromptTemplate:
    """A Jinja file that renders one user message. `name`: a file in progpo_trl/prompts (without .jinja), or a path.

    may_be_cut: the template uses the variable `cut`, and so allows that a long observation is shortened to fit.
    """

    def __init__(self, name: str | Path):
        path = PROMPTS / f"{name}.jinja"
        if not path.is_file():
            path = Path(name)
        if not path.is_file():
            shipped = sorted(p.stem for p in PROMPTS.glob("*.jinja"))
            near = get_close_matches(str(name), shipped, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no prompt template {str(name)!r}: neither a file nor one of {shipped}{hint}")
        # Sandboxed, since a template may come with a downloaded recipe; observations are only ever variables in it.
        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
        self.path = path
        # Small: it serves the members of a group, which see the same first turns at the same time.
        self._memo = Memo(self._render, size=2_000)
        try:
            source = path.read_text(encoding="utf-8")
            self.may_be_cut = "cut" in jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"prompt template {path}, line {error.lineno}: {error.message}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"prompt template {path}: {error}") from error

    def check(self, mode: str) -> None:
        """Render a first and a later turn, with and without a list of commands; ValueError names what is wrong."""
        empty = np.empty(0, np.int32)
        played = [Step("An observation.", empty, empty, None, "", "an action", True, True)]
        for steps in ([], played):
            for admissible in (None, ("look",)):
                view = TurnView("You see a door.", admissible, "open the door.", steps, 2)
                cut = replace(view, observation="", admissible=admissible and (), cut=True)
                if not (self.render(mode, view, history=1) and (not self.may_be_cut or self.render(mode, cut))):
                    raise ValueError(f"prompt template {self.path}: turn {len(steps) + 1} renders an empty message")

    def render(self, mode: str, view: TurnView, history: int = 0) -> str:
        """The user message for `view`; `history` past steps are offered to the template (0 in full context)."""
        played = len(view.steps)
        first = played - min(history, played)
        past = tuple((i + 1, view.steps[i].observation, view.steps[i].action) for i in range(first, played))
        turn = (view.max_steps, view.task, view.observation, view.admissible, view.cut)
        return self._memo((mode, played, *turn, past))

    def _render(self, key: tuple) -> str:
        mode, played, max_steps, task, observation, admissible, cut, past = key
        try:
            return self._template.render(
                mode=mode,
                step=played,
                max_steps=max_steps,
                task=task,
                observation=observation,
                admissible=None if admissible is None else list(admissible),
                history=[HistoryEntry(*entry) for entry in past],
                cut=cut,
            ).strip()
        except Exception as error:
            # A template runs expressions of its author; whatever they raise is the template's fault.
            raise ValueError(f"prompt template {self.path}: {error or type(error).__name__}") from error


class _Context:
    """What both contexts share: the template, the system message, the token limit."""

    mode: str

    def __init__(
        self,
        tokenizer,
        template: PromptTemplate,
        *,
        limit: int,
        system_prompt: str | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ):
        self.tokenizer, self.template, self.limit = tokenizer, template, limit
        self.system_prompt, self.template_kwargs = system_prompt, template_kwargs or {}
        self._plain = PlainText(tokenizer)
        self._chat_text("x")  # a damaged chat template is found now, not in the first episode

    def _user_text(self, view: TurnView, history: int = 0) -> str:
        return self._plain(self.template.render(self.mode, view, history))

    def _chat_text(self, user_text: str) -> str:
        messages = [{"role": "user", "content": user_text}]
        if self.system_prompt:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return rendered(self.tokenizer, messages, self.template_kwargs)

    def _tokenise(self, texts: list[str]) -> list[np.ndarray]:
        if not texts:
            return []
        return [np.array(ids, np.int32) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def _cut_to_fit(self, view: TurnView, prompt_of: Callable[[TurnView], np.ndarray]) -> np.ndarray | None:
        """The prompt of `view` with less of its observation, and if that is not enough with fewer of its commands.

        prompt_of: makes the prompt of a view. An observation is cut at its end, where the ELLIPSIS is put; of the
        commands the first and the last ones stay. None where the template does not allow it or what is left is still
        too long.
        """
        if not self.template.may_be_cut:
            return None
        text, commands = view.observation, view.admissible or ()

        def less_text(n: int) -> np.ndarray:
            return prompt_of(replace(view, observation=text[:n] + ELLIPSIS, cut=True))

        def fewer_commands(n: int) -> np.ndarray:
            ends = commands[: n - n // 2] + commands[len(commands) - n // 2 :]
            return prompt_of(replace(view, observation=ELLIPSIS, admissible=ends, cut=True))

        ids = self._most_that_fits(less_text, len(text))
        return self._most_that_fits(fewer_commands, len(commands)) if ids is None and commands else ids

    def _most_that_fits(self, prompt_of: Callable[[int], np.ndarray], n: int) -> np.ndarray | None:
        """The prompt of about as much of `n` as the limit allows, to a 64th; None where that of nothing is over it."""
        best = prompt_of(0)
        if len(best) > self.limit:
            return None
        low, high = 0, n
        while high - low > max(1, n // 64):
            middle = (low + high) // 2
            ids = prompt_of(middle)
            if len(ids) <= self.limit:
                low, best = middle, ids
            else:
                high = middle
        return best


class WindowContext(_Context):
    """One user message a turn, rebuilt from the last `history` steps. Each turn is a training row of its own.

    A prompt over the limit is written again with less history, then with none; where the template allows it, the
    observation is cut after that.
    """

    mode = "window"

    def __init__(self, *args, history: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.history = history

    def prompts(self, views: Sequence[TurnView]) -> list[np.ndarray | None]:
        """int32 prompt ids of every view; None where the prompt is over the limit even when it is shortened."""
        out: list[np.ndarray | None] = [None] * len(views)
        pending = list(range(len(views)))
        for history in range(self.history, -1, -1):
            found = self._written([views[i] for i in pending], history)
            over = []
            for i, ids in zip(pending, found, strict=True):
                if len(ids) <= self.limit:
                    out[i] = ids
                # Shorter history helps only where there is history to drop.
                elif history > 0 and len(views[i].steps) > 0:
                    over.append(i)
                else:
                    out[i] = self._cut_to_fit(views[i], lambda view: self._written([view], 0)[0])
            pending = over
            if not pending:
                break
        return out

    def _written(self, views: Sequence[TurnView], history: int) -> list[np.ndarray]:
        return self._tokenise([self._chat_text(self._user_text(view, history)) for view in views])


class FullContext(_Context):
    """The whole conversation: each prompt extends the last one by the sampled turn and the new observation.

    What was said cannot be dropped, so an episode can reach the limit; its last observation is cut where the template
    allows it.
    """

    mode = "full"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._delta = ChatDelta(self.tokenizer, self.template_kwargs)
        self._first = Memo(lambda text: self._tokenise([self._chat_text(text)])[0])

    def prompts(self, views: Sequence[TurnView]) -> list[np.ndarray | None]:
        """int32 prompt ids of every view; None where the conversation is over the limit.

        Only the newest observation can be cut: what was sampled before followed from what was read then.
        """
        out = []
        for view in views:
            ids = self._extended(view)
            out.append(ids if len(ids) <= self.limit else self._cut_to_fit(view, self._extended))
        return out

    def _extended(self, view: TurnView) -> np.ndarray:
        text = self._user_text(view)
        if not view.steps:
            return self._first(text)
        last = view.steps[-1]
        return np.concatenate([last.context_ids, last.completion_ids, self._delta(last.completion_ids, text)])


def make_context(
    settings, tokenizer, template: PromptTemplate, *, window: int, template_kwargs: dict[str, Any] | None = None
) -> WindowContext | FullContext:
    """The context that `settings` ask for (context, history, system_prompt, max_context_length and
    max_completion_length of MultiTurnGRPOConfig). window: tokens of prompt and response together that the model takes.

    Raises ValueError where a response of that length leaves no room for a prompt, and where the tokenizer is an empty
    one or its chat template cannot be used.
    """
    _check_vocabulary(tokenizer)
    room = window - settings.max_completion_length
    if room < 1:
        raise ValueError(
            f"max_completion_length={settings.max_completion_length} leaves no room for a prompt in the model's "
            f"window of {window} tokens"
        )
    options = {
        "limit": min(room, settings.max_context_length or room),
        "system_prompt": settings.system_prompt,
        "template_kwargs": template_kwargs,
    }
    if settings.context == "full":
        return FullContext(tokenizer, template, **options)
    return WindowContext(tokenizer, template, history=settings.history, **options)


def _check_vocabulary(tokenizer) -> None:
    """transformers makes up an empty tokenizer for a folder without the files of one: all text would be no tokens."""
    ids = tokenizer("Look at the desk 1.", add_special_tokens=False)["input_ids"]
    if all(i == tokenizer.unk_token_id for i in ids) and set(tokenizer.get_vocab()) <= set(
        tokenizer.all_special_tokens
    ):
        raise ValueError(
            f"the tokenizer of {tokenizer.name_or_path} has no tokens for plain text ({len(tokenizer)} in all): "
            "tokenizer.json (or vocab.json with merges.txt) is missing beside the model, or damaged"
        )


def model_window(config) -> int:
    """Tokens of prompt and response together that a model of this transformers config takes; huge if it says none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or 2**30
