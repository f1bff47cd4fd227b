"""Makes the shipped checkpoints: tokenizer, random model, warm start.

    python -m progpo_trl.tiny_policy.make --out DIR

writes DIR/base, DIR/base-hard and DIR/base-shop, which are shipped, and DIR/expert and DIR/shop-expert, which they
start from. On one CPU core this takes some minutes. The same command gives the same weights, byte for byte, on the
same machine and library versions.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from progpo_trl.environments.alfworld import rooms
from progpo_trl.environments.alfworld.expert import noisy_play
from progpo_trl.environments.alfworld.generate import LEVELS, GeneratedAlfworldTasks
from progpo_trl.tiny_policy import shop
from progpo_trl.tiny_policy.tokenizer import PAD, build_tokenizer
from progpo_trl.tiny_policy.warm_start import Phase, TraceEncoder, batches, fit, new_model, prompt

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2Tokenizer

WORLDS = ("alfworld", "webshop")

# Other games than the default ones, so that the policy is not warm-started on what it is trained on later.
GAME_SEED = 1
N_GAMES = 100_000
# Slightly larger rooms than the quickstart's, so that there is something left to learn there.
DIALS = {"easy": {"n_receptacles": 6, "closed_share": 0.34, "max_steps": 14}}
SMALL = ("easy", "easy", "medium", "hard")

# name -> (where it starts from, how it is trained). Learning from very noisy play alone fails, so the expert comes
# first and the noise after it; the noisier the play, the lower the success rate it leaves.
STAGES: dict[str, tuple[str | None, Phase]] = {
    "expert": (None, Phase(0.8, 0.05, 2400, 8, 5e-3, 0.5, SMALL)),
    "base": ("expert", Phase(0.5, 0.1, 500, 8, 2e-3, 0.2, SMALL)),
    "base-hard": ("base", Phase(0.35, 0.1, 300, 8, 1e-3, 0.2, SMALL)),
}


def corpus(tasks: dict[str, GeneratedAlfworldTasks], seed: int, episodes: int) -> Iterator[str]:
    """Texts for the tokenizer: prompts and commands of half-expert play."""
    rng = random.Random(f"corpus/{seed}")
    for level, task_set in tasks.items():
        ids = task_set.task_ids()
        for _ in range(episodes if level in SMALL else episodes // 4):
            observations, commands, _ = noisy_play(task_set.make(), rng.choice(ids), 0.5, task_set.max_steps, rng, 0.1)
            yield from map(prompt, observations)
            yield from commands


def traces(
    tasks: dict[str, GeneratedAlfworldTasks], phase: Phase, encoder: TraceEncoder, seed: str
) -> Iterator[tuple[list[int], list[int]]]:
    """Endless encoded episodes of `phase`."""
    rng = random.Random(f"traces/{seed}")
    ids = {level: tasks[level].task_ids() for level in phase.levels}
    while True:
        level = rng.choice(phase.levels)
        task_set, task_id = tasks[level], rng.choice(ids[level])
        observations, commands, _ = noisy_play(
            task_set.make(), task_id, phase.p_expert, task_set.max_steps, rng, phase.p_wrong
        )
        yield encoder(observations, commands, [text == "Nothing happens." for text in observations[1:]])


def make(
    out: Path, *, seed: int = 0, scale: float = 1.0, corpus_episodes: int = 400, worlds: Sequence[str] = WORLDS
) -> None:
    """Train all stages of `worlds` and save each under `out`. `scale` shortens every stage, for trials."""
    import torch

    torch.set_num_threads(1)  # more threads would change the order of summation, and with it the bytes
    started = time.time()
    if "alfworld" in worlds:
        tasks = {
            level: GeneratedAlfworldTasks(level, game_seed=GAME_SEED, n_train=N_GAMES, **DIALS.get(level, {}))
            for level in LEVELS
        }
        tokenizer = build_tokenizer(corpus(tasks, seed, corpus_episodes), rooms.kinds())
        train(out, tokenizer, STAGES, partial(traces, tasks), seed=seed, scale=scale, started=started)
    if "webshop" in worlds:
        shops = shop.shops()
        tokenizer = shop.build_shop_tokenizer(shop.corpus(shops, seed, corpus_episodes))
        train(out, tokenizer, shop.STAGES, partial(shop.traces, shops), seed=seed, scale=scale, started=started)


def train(
    out: Path,
    tokenizer: Qwen2Tokenizer,
    stages: Mapping[str, tuple[str | None, Phase]],
    traces: Callable[[Phase, TraceEncoder, str], Iterator[tuple[list[int], list[int]]]],
    *,
    seed: int,
    scale: float,
    started: float,
) -> None:
    """Train the stages of one world and save each; started: when, by the clock, for the messages."""
    encoder = TraceEncoder(tokenizer)
    pad = tokenizer.convert_tokens_to_ids(PAD)
    states: dict[str | None, dict[str, torch.Tensor]] = {None: new_model(tokenizer, seed).state_dict()}
    print(f"tokenizer: {len(tokenizer)} tokens, {time.time() - started:.0f} s", flush=True)
    for name, (start, phase) in stages.items():
        phase = replace(phase, steps=max(1, round(phase.steps * scale)))
        model = new_model(tokenizer, seed)
        model.load_state_dict(states[start])

        def report(step: int, action_loss: float, observation_loss: float, name=name, steps=phase.steps) -> None:
            if step % 50 == 0 or step == steps:
                losses = f"loss of actions {action_loss:.3f}, of observations {observation_loss:.3f}"
                print(f"{name}: step {step}/{steps}, {losses}, {time.time() - started:.0f} s", flush=True)

        data = batches(traces(phase, encoder, f"{seed}/{name}"), phase.batch_size, phase.observation_weight, pad)
        fit(model, phase, data, report)
        states[name] = {key: value.clone() for key, value in model.state_dict().items()}
        model.save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
        print(f"{name}: saved to {out / name}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m progpo_trl.tiny_policy.make", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints; made if missing")
    parser.add_argument("--seed", type=int, default=0, help="of weights, games and play (default 0: as shipped)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the training steps to do, for a trial (default 1)"
    )
    parser.add_argument(
        "--corpus-episodes", type=int, default=400, help="episodes a level the tokenizer learns from (default 400)"
    )
    parser.add_argument(
        "--worlds", nargs="+", choices=WORLDS, default=WORLDS, help="whose checkpoints to make (default: all)"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    make(
        options.out,
        seed=options.seed,
        scale=options.scale,
        corpus_episodes=options.corpus_episodes,
        worlds=options.worlds,
    )


if __name__ == "__main__":
    main()
