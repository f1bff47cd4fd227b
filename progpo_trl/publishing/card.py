"""The model card of a trained agent: README.md with metadata for the Hub, from `CardFacts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import yaml

from progpo_trl.markdown import Markdown, code, escaped, fenced, table
from progpo_trl.publishing import evaluations
from progpo_trl.publishing.facts import CardFacts, environment_title
from progpo_trl.publishing.method import Method
from progpo_trl.publishing.repeat import repeat_command
from progpo_trl.publishing.run_summary import around_section

TEMPLATE = Path(__file__).with_name("card.md.jinja")
TAGS = ("progpo_trl", "trl", "agent", "multi-turn", "reinforcement-learning")


def render(facts: CardFacts) -> str:
    """The whole README.md. Every value is escaped unless it is Markdown made here."""
    environment = environment_title(facts.environment)
    # What is not Markdown already is text, so that nothing has to be remembered in the template.
    engine = jinja2.Environment(
        finalize=escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    folder = facts.repo.rpartition("/")[2]
    contents = [c for c in facts.evaluations if not evaluations.during_training(c)]
    commands = (repeat_command(content, folder, facts.settings) for content in contents)
    repeats = "\n".join(command for command in commands if command)
    body = engine.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=facts.name,
        warnings=facts.warnings,
        environment=environment,
        what=_what(facts),
        methods=facts.methods,
        cited=_cited,
        cited_works=_works(facts, environment),
        sections=[evaluations.section(content) for content in facts.evaluations],
        around=around_section(facts.around),
        repeats=fenced(f"hf download {facts.repo} --local-dir {folder}\n{repeats}", "bash") if repeats else "",
        loading=fenced(loading(facts), "python"),
        playing=fenced(f"progpo run {facts.repo}", "bash"),
        recipe=facts.recipe,
        training=_training(facts),
        method_yaml=_yaml(
            {k: facts.settings.get(k) for k in ("advantage", "progress_fallback") if k in facts.settings}
        )
        if "advantage" in facts.settings
        else Markdown(", ".join(code(method.name) for method in facts.methods)),
        environment_yaml=_yaml({"environment": dict(facts.environment), **_counts(facts.data)}),
        limitations=_limitations(facts),
    )
    return f"---\n{metadata(facts)}\n---\n\n{body.strip()}\n"


def metadata(facts: CardFacts) -> str:
    """The card's YAML, as huggingface_hub writes it."""
    from huggingface_hub import ModelCardData

    values: dict[str, Any] = {
        "library_name": "peft" if facts.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys([*TAGS, *facts.tags, *_tags(facts)])),
    }
    if facts.base.hub:
        values |= {"base_model": facts.base.hub, "base_model_relation": "adapter" if facts.adapter else "finetune"}
    values |= facts.license
    results = evaluations.eval_results(facts.evaluations)
    if results:
        values |= {"eval_results": results, "model_name": facts.name}
    return ModelCardData(**values).to_yaml()


def _tags(facts: CardFacts) -> list[str]:
    methods = [method.name.split(" ")[0].lower() for method in facts.methods]
    return [*methods, *(["lora"] if facts.adapter else []), str(facts.environment.get("name", "custom"))]


def _what(facts: CardFacts) -> Markdown:
    base = facts.base
    if base.hub:
        name = Markdown(f"[{escaped(base.hub)}](https://huggingface.co/{base.hub})")
    elif base.shipped:
        name = Markdown(f"the tiny policy {code(base.shipped)} that ships with progpo_trl")
    elif base.local:
        name = Markdown(f"a model called {code(base.local)}, which is not published")
    else:
        name = Markdown("an unknown model")
    return Markdown(f"{'A LoRA adapter on' if facts.adapter else 'A full fine-tune of'} {name}")


def _cited(method: Method) -> Markdown:
    return Markdown(f" ([arXiv:{method.paper}]({method.link}))" if method.paper else "")


def _works(facts: CardFacts, environment: Method) -> list[Method]:
    return [*facts.methods, environment, Method(f"progpo_trl {facts.versions.get('progpo_trl', '')}".strip())]


def loading(facts: CardFacts) -> str:
    """Python that loads the model and its tokenizer; it runs as it stands."""
    tokenizer = f'tokenizer = AutoTokenizer.from_pretrained("{facts.repo}")'
    if not facts.adapter:
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'model = AutoModelForCausalLM.from_pretrained("{facts.repo}")\n{tokenizer}'
        )
    if facts.base.shipped:
        from progpo_trl.train import TINY_POLICIES

        return (
            "from peft import PeftModel\nfrom progpo_trl.tiny_policy import checkpoint_path\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'base = AutoModelForCausalLM.from_pretrained(checkpoint_path("{TINY_POLICIES[facts.base.shipped]}"))\n'
            f'model = PeftModel.from_pretrained(base, "{facts.repo}")\n{tokenizer}'
        )
    return (
        "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n\n"
        f'model = AutoPeftModelForCausalLM.from_pretrained("{facts.repo}")\n{tokenizer}'
    )


def _training(facts: CardFacts) -> Markdown:
    rows = [[name, value] for part in (facts.training, facts.hardware) for name, value in part.items()]
    rows += [[name, version] for name, version in facts.versions.items()]
    return table(["", ""], rows) if rows else Markdown("Not recorded.")


def _counts(data: Any) -> dict[str, Any]:
    """Games or goals of each split, of the data as the run found it."""
    counts = {name: part["total"] for name, part in data.items() if isinstance(part, dict) and "total" in part}
    return {"games": counts} if counts else {}


def _yaml(value: dict[str, Any]) -> Markdown:
    return fenced(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110), "yaml")


def _limitations(facts: CardFacts) -> list[str]:
    said = [
        "It plays one environment through one prompt format. It was not trained to chat, and nothing is known of "
        "other tasks, other wordings or other languages.",
        "Its responses are read by a program that takes an action from them; do not run them as commands of anything "
        "else.",
        f"One training run{_seed(facts)}: how much runs of this recipe differ is not known from it.",
    ]
    if str(facts.environment.get("name", "")).endswith("_generated"):
        said.append("Generated games are simpler than the real environment; success here says nothing about it.")
    if facts.base.shipped:
        said.append("The base is a toy of 0.14M parameters that speaks nothing but this environment's commands.")
    return said


def _seed(facts: CardFacts) -> str:
    seed = facts.training.get("seed")
    return "" if seed is None else f" (seed {seed})"
