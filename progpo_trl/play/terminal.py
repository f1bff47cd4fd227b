"""Playing in a terminal: line in, text out; plain where the output is no terminal."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Sequence

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from progpo_trl.environments.base import OpenCommand
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.environments.webshop.pages import SEPARATOR
from progpo_trl.play.errors import DATA_ERRORS
from progpo_trl.play.hints import hint
from progpo_trl.play.player import Player
from progpo_trl.play.record import EpisodeFile, Keeper
from progpo_trl.reporting.explanation import printable

SHOWN = 40  # commands listed without being asked for more
HELP = """\
A number or the text of a command plays it; any other text is played too, as a policy's would be.
/word   the commands that contain the word; / alone lists all of them
?       what the expert would do (with --expert)
p       the prompt that a policy would get now
s       the steps so far
u       take the last step back        r   the same task again
n       another task                   q   leave"""


# Spaces of other kinds, which real product texts are full of; without this they would count as unprintable.
_SPACES = dict.fromkeys([0x09, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Left to the `progpo` command, as everywhere else; rich would end the program itself."""
        raise  # it is called where the error is handled


class Screen:
    """Standard input and output. What environments and people wrote is shown without what would act on a terminal."""

    def __init__(self):
        for stream in (sys.stdin, sys.stdout):
            # A stream that was read from keeps its settings.
            if hasattr(stream, "reconfigure"):
                with contextlib.suppress(io.UnsupportedOperation):
                    stream.reconfigure(errors="replace")
        self._console = _Console(highlight=False, markup=False, emoji=False)
        self.is_terminal = self._console.is_terminal

    def say(self, text: str = "", style: str = "") -> None:
        """Print lines."""
        self._console.print(Text(_clean(text), style), soft_wrap=not self.is_terminal)

    def write(self, text: str, style: str = "") -> None:
        """Print a piece of a line at once."""
        self._console.print(Text(_clean(text), style), end="", soft_wrap=True)
        self._console.file.flush()

    def columns(self, texts: Sequence[str]) -> None:
        """Print short texts side by side in a terminal, else one a line."""
        if not self.is_terminal:
            self.say("\n".join(texts))
        else:
            self._console.print(Columns([Text(_clean(text)) for text in texts], padding=(0, 3), column_first=True))


def _clean(text: str) -> str:
    return "\n".join(map(printable, text.translate(_SPACES).split("\n")))


class LeaveError(Exception):
    """The player has had enough."""


class Terminal:
    """Plays episodes until the player leaves.

    make: an episode of the first task, or of another one; expert: whether `?` gives hints; show_prompt: whether every
    step shows the policy's prompt beside the observation; file: where episodes are saved.
    """

    def __init__(
        self,
        make: Callable[[], Player],
        *,
        expert: bool = False,
        show_prompt: bool = False,
        file: EpisodeFile | None = None,
    ):
        self.make, self.expert, self.show_prompt, self.file = make, expert, show_prompt, file
        self.screen = Screen()
        self.player = make()
        self.keeper = Keeper(file)

    def run(self) -> int:
        """Play; returns the exit status: 0, 130 when Ctrl-C ended it, 2 when the environment's files turn out damaged.

        The steps of an unfinished episode are saved as well.
        """
        status = 0
        _complete_commands(lambda: self.player.turn.admissible or ())
        try:
            self._introduce()
            while True:
                self._answer(self._ask())
        except (LeaveError, EOFError):
            pass
        except KeyboardInterrupt:
            status = 130
        except DATA_ERRORS as error:
            print(f"progpo play: error: {printable(str(error))}", file=sys.stderr)
            status = 2
        if self.screen.is_terminal:
            self.screen.say()  # below the line that was being typed
        self._keep()
        n = len(self.player.episode.steps)
        state = "the episode is over" if self.player.done else "the episode was not over"
        self.screen.say(f"Left after {n} step{'' if n == 1 else 's'}; {state}.")
        return status

    def _ask(self) -> str:
        if sys.stdin.isatty():
            return input("> ").strip()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        self.screen.say(f"> {line.strip()}")
        return line.strip()

    def _answer(self, line: str) -> None:
        if line == "":
            self._commands()
        elif line.startswith("/"):
            self._commands(line[1:].strip(), everything=True)
        elif line.lower() in _KEYS:
            _KEYS[line.lower()](self)
        elif self.player.done:
            self.screen.say("The episode is over: u takes the last step back, r starts again, n is another task.")
        elif line.isdecimal():
            self._play_number(line)
        else:
            self._play(line)

    def _play_number(self, line: str) -> None:
        commands = self.player.turn.admissible or ()
        number = int(line) if len(line) < 9 else 0
        if not 1 <= number <= len(commands):
            there = f"they go from 1 to {len(commands)}" if commands else "none are listed"
            self.screen.say(f"There is no command {line}: {there}.")
        elif isinstance(commands[number - 1], OpenCommand):
            self.screen.say(f"Type it with your own words: {commands[number - 1]}")
        else:
            self._play(commands[number - 1])

    def _play(self, text: str) -> None:
        if not self.player.read(text).action:
            self.screen.say("Nothing was played: no action is in this.")
            return
        result = self.player.play(text)
        step = self.player.episode.steps[-1]
        if not step.admissible:
            self.screen.say(f"({step.action!r} is not one of the commands; u takes it back)", "yellow")
        if result.reward:
            self.screen.say(f"reward {result.reward:g}", "bold")
        self._show()
        if self.player.done:
            self._keep()

    def _introduce(self) -> None:
        player, tasks = self.player, self.player.tasks
        self.screen.say(f"{tasks.name}: task {player.task_id} ({player.task_type}), at most {tasks.max_steps} steps.")
        self.screen.say("Type a number or a command; h explains, q leaves.", "dim")
        if player.episode.task:
            self.screen.say(f"\nTask: {player.episode.task}", "bold")
        self._show()

    def _show(self) -> None:
        """The observation, and the commands or the end."""
        player = self.player
        step = len(player.episode.steps)
        rule = f"--- after step {step} of {player.tasks.max_steps} ---" if step else "--- start ---"
        self.screen.say(f"\n{rule}", "dim")
        text = player.turn.observation
        if isinstance(player.environment, WebshopEnvironment):
            text = text.replace(SEPARATOR, "\n")
        self.screen.say(text)
        if player.done:
            self._end()
            return
        if self.show_prompt:
            self._prompt()
        self._commands()

    def _commands(self, word: str = "", everything: bool = False) -> None:
        commands = self.player.turn.admissible
        if self.player.done or commands is None:
            return
        numbered = [f"{i:>3} {command}" for i, command in enumerate(commands, start=1)]
        found = [line for line, command in zip(numbered, commands, strict=True) if word.lower() in command.lower()]
        if not found:
            self.screen.say(f"No command contains {word!r}." if word else "No commands are listed.")
            return
        shown = found if everything else found[:SHOWN]
        self.screen.say("\nCommands:" if not word else f"\nCommands with {word!r}:", "dim")
        self.screen.columns(shown)
        if len(shown) < len(found):
            self.screen.say(f"    and {len(found) - len(shown)} more: / lists all, /word those with the word", "dim")

    def _end(self) -> None:
        player = self.player
        episode = player.episode
        n = len(episode.steps)
        ended = f"The end after {n} step{'' if n == 1 else 's'}: {episode.stop_reason.value.replace('_', ' ')}"
        score = "" if player.score is None else f", score {player.score:g}"
        self.screen.say(f"\n{ended}, return {episode.environment_return:g}{score}", "bold")
        parts = [f"{name} {value:g}" for name, value in player.outcome().items() if name != "score"]
        if parts:
            self.screen.say(", ".join(parts))
        self._steps()
        self.screen.say("u takes the last step back, r starts again, n is another task, q leaves.", "dim")

    def _steps(self) -> None:
        steps = self.player.episode.steps
        self.screen.say("Steps so far:" if steps else "No steps so far.")
        for i, step in enumerate(steps, start=1):
            notes = [] if step.admissible else ["not one of the commands"]
            notes += [f"reward {step.reward:g}"] if step.reward else []
            self.screen.say(f"{i:>3} {step.action}" + (f"  ({', '.join(notes)})" if notes else ""))

    def _prompt(self) -> None:
        prompt = self.player.prompt()
        if prompt is None:
            self.screen.say("The episode is over: a policy gets no prompt.")
            return
        self.screen.say("\n--- the prompt ---", "dim")
        self.screen.say(prompt, "cyan")
        self.screen.say("--- end of the prompt ---", "dim")

    def _hint(self) -> None:
        if not self.expert:
            self.screen.say("Hints need --expert on the command line.")
        elif self.player.done:
            self.screen.say("The episode is over.")
        else:
            self.screen.say(f"The expert: {hint(self.player) or 'does not know'}", "green")

    def _undo(self) -> None:
        if self.player.undo():
            self._show()
        else:
            self.screen.say("There is no step to take back.")

    def _restart(self) -> None:
        self._keep()
        self.player.restart()
        self.keeper = Keeper(self.file)
        self._show()

    def _next(self) -> None:
        self._keep()
        self.player, self.keeper = self.make(), Keeper(self.file)
        self._introduce()

    def _keep(self) -> None:
        try:
            if self.keeper.keep(self.player.episode):
                self.screen.say(f"Saved to {self.file.path}.", "dim")
        except OSError as error:
            self.screen.say(f"Not saved: {self.file.path}: {error.strerror or error}", "red")

    def _help(self) -> None:
        self.screen.say(HELP)

    def _leave(self) -> None:
        raise LeaveError


_KEYS: dict[str, Callable[[Terminal], None]] = {
    "?": Terminal._hint,
    "h": Terminal._help,
    "p": Terminal._prompt,
    "s": Terminal._steps,
    "u": Terminal._undo,
    "r": Terminal._restart,
    "n": Terminal._next,
    "q": Terminal._leave,
}


def _complete_commands(commands: Callable[[], Sequence[str]]) -> None:
    """Line editing, history and Tab for commands, where Python has readline and a person types."""
    if not sys.stdin.isatty():
        return
    try:
        import readline
    except ImportError:  # Windows, or a Python built without it
        return

    def complete(text: str, state: int) -> str | None:
        found = [command for command in commands() if command.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer_delims("")  # commands have spaces and brackets in them
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
