"""The log of a training in the terminal."""

from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from progpo_trl.reporting.console import CompactConsole, log_line

LOGS = {"rollout/success": 0.25, "grad_norm": 1.0}


@pytest.mark.parametrize(
    ("step", "since", "expected"),
    [
        (8, None, "generation    4  success  25%  grad 1.00"),
        (8, 6, "generation    4  success  25%  grad 1.00"),
        (7, 6, "generation    4  success  25%  grad 1.00"),
        (8, 0, "generations 1-4  success  25%  grad 1.00"),
        (8, 3, "generations 2-4  success  25%  grad 1.00"),
    ],
)
def test_a_line_says_which_generations_its_means_are_of(step, since, expected):
    assert log_line(LOGS, step, 2, since) == expected


def test_other_logs_have_no_line():
    assert log_line({"eval_success": 1.0}, 8, 2) is None


def test_a_resumed_run_begins_where_it_was(capsys):
    state = TrainerState(global_step=8, max_steps=16, is_world_process_zero=True)
    args, control, console = SimpleNamespace(disable_tqdm=True), TrainerControl(), CompactConsole(2)
    console.on_train_begin(args, state, control)
    for step in (12, 14):
        state.global_step = step
        console.on_log(args, state, control, logs={"eval_success": 0.5})
        console.on_log(args, state, control, logs=LOGS)
    console.on_train_end(args, state, control)
    printed = [line.partition("  success")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["evaluation", "generations 5-6", "evaluation", "generation    7"]
