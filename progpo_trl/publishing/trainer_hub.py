"""What a trainer publishes of itself: its card, and its uploads to the Hub.

transformers would upload the whole output folder with `push_to_hub: true`, episodes and pickled arguments included,
and TRL's card names no base for a local model. Here both go the way of `progpo publish`.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from progpo_trl import atomic
from progpo_trl.publishing.errors import PublishError

logger = logging.getLogger(__name__)


class Publishing:
    """Mixin for a trainer, before transformers' own in the list of base classes."""

    _push: threading.Thread | None = None
    # What the command that trains knows of its run, as it will stand in summary.json; empty for a script of one's own.
    run_facts: Mapping[str, Any] = {}

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """As in transformers, which also writes the arguments (training_args.bin): without tokens."""
        args, self.args = self.args, _without_tokens(self.args)
        try:
            super()._save(output_dir, state_dict=state_dict)
        finally:
            self.args = args

    def create_model_card(self, model_name: str | None = None, dataset_name: str | None = None, tags=None) -> None:
        """Write README.md into the output folder: what the trainer knows of itself (`progpo publish` says more)."""
        if not self.is_world_process_zero():
            return
        from progpo_trl.publishing.card import render

        tags = [tags] if isinstance(tags, str) else list(tags or [])
        tags += [f"dataset:{dataset_name}"] if dataset_name else []
        try:
            facts, _ = self._card_facts(model_name, tags)
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            atomic.write_text(Path(self.args.output_dir, "README.md"), render(facts))
        except (PublishError, OSError) as error:
            logger.warning("the model card was not written: %s", error)

    def _card_facts(self, name: str | None = None, tags: list[str] | None = None):
        """(facts of the card, files of the evaluations in it)."""
        from progpo_trl.publishing import evaluations
        from progpo_trl.publishing.doubts import doubts
        from progpo_trl.publishing.facts import CardFacts, base_of, training_rows
        from progpo_trl.publishing.local import PublicNames, without_places
        from progpo_trl.publishing.method import methods_of
        from progpo_trl.settings import versions

        args, step = self.args, self.weights_step
        repo = self.hub_model_id or args.hub_model_id or Path(args.output_dir).resolve().name
        place = getattr(self.model.config, "_name_or_path", None) or None
        base = base_of(place)
        adapter = hasattr(self.model, "peft_config")
        found = evaluations.of_training(Path(args.output_dir))
        files = [found[max(n for n in found if n <= step)]] if any(n <= step for n in found) else []
        contents = [evaluations.read(path) for path in files]
        names = PublicNames({args.output_dir: repo} | ({place: base.name} if place and not base.hub else {}))
        known = self.run_facts
        asked = {name: known[name] for name in ("advantage", "progress_fallback") if known.get(name) is not None}
        settings = ("num_generations", "groups_per_generation", "learning_rate", "beta", "loss_type")
        facts = CardFacts(
            name=name or repo.rpartition("/")[2],
            repo=repo,
            adapter=adapter,
            base=base,
            methods=methods_of(self.advantage),
            environment=without_places(known.get("environment") or {"name": self.tasks.name}),
            settings=names.value(asked),
            data=known["data"] if "data" in known else self.tasks.data_summary(),
            around=known,
            evaluations=[names.value(content) for content in contents],
            training=training_rows(
                {n: getattr(args, n) for n in settings},
                {**known, "seed": args.seed, "updates": self.state.global_step, "weights_step": step},
            ),
            versions=versions(),
            recipe=Path(args.output_dir, "config.yaml").is_file(),
            tags=tags or [],
            warnings=[
                *base.doubts(),
                *doubts(contents, {}, weights=None, step=step, adapter=adapter, around=known),
            ],
        )
        return facts, files

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """The repository is made with the first upload: a Hub that cannot be reached must not stop a training from
        beginning. What can be known without asking it is said now."""
        from huggingface_hub import constants, get_token

        self.hub_model_id = self.args.hub_model_id or Path(self.args.output_dir).resolve().name
        if not self.is_world_process_zero():
            return
        if constants.is_offline_mode():
            logger.warning("push_to_hub: HF_HUB_OFFLINE is set, nothing will be uploaded")
        elif not (token or self.args.hub_token or get_token()):
            logger.warning("push_to_hub: there is no Hugging Face token; run `hf auth login` before the training ends")

    def push_to_hub(self, commit_message: str | None = "End of training", token: str | None = None, **unused: Any):
        """Save the model and publish it as `progpo publish` does. Returns its address (main process), else None.

        Raises PublishError, which says where the model is: nothing is lost by an upload that fails.
        """
        if unused:
            raise TypeError(f"push_to_hub has no argument {next(iter(unused))!r}")
        self.save_final_model(self.args.output_dir)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        return self._publish(Path(self.args.output_dir), commit_message, token)

    def push_checkpoint(self, checkpoint: str) -> None:
        """Publish a checkpoint beside the training (`hub_strategy` other than "end"), unless the last one is still
        on its way. A failure is logged: it never stops a training."""
        if not self.is_world_process_zero() or self.args.hub_strategy == "end":
            return
        if self._push is not None and self._push.is_alive():
            return

        # The files are linked before the checkpoint can be removed; the upload itself may take longer.
        beside = tempfile.TemporaryDirectory(prefix=".publish.", dir=self.args.output_dir)
        try:
            folder = self._prepare(Path(checkpoint), Path(beside.name, "folder"))
        except (PublishError, OSError) as error:
            beside.cleanup()
            logger.warning("the checkpoint was not pushed: %s", error)
            return
        message = f"Training in progress, step {self.state.global_step}"
        token = self.args.hub_token  # read now: while a checkpoint is saved it is not there

        def upload() -> None:
            with beside:
                try:
                    self._upload(folder, message, token)
                except PublishError as error:
                    logger.warning("the checkpoint was not pushed: %s", error)

        self._push = threading.Thread(target=upload, daemon=True, name="push to the Hub")
        self._push.start()

    def _finish_current_push(self) -> None:
        """Wait for the upload that is on its way."""
        if self._push is not None:
            self._push.join()

    def _publish(self, weights: Path, message: str | None, token: str | None) -> str:
        with tempfile.TemporaryDirectory(prefix=".publish.", dir=self.args.output_dir) as beside:
            try:
                return self._upload(self._prepare(weights, Path(beside, "folder")), message, token)
            except PublishError as error:
                # The folder is gone with this block; the model stays.
                what = str(error).partition("; nothing was uploaded")[0]
                raise PublishError(f"{what}; the model is in {weights}: `progpo publish` uploads it later") from error

    def _prepare(self, weights: Path, folder: Path) -> Path:
        from progpo_trl.publishing.folder import prepare

        has_recipe = Path(self.args.output_dir, "config.yaml").is_file()
        facts, files = (None, None) if has_recipe else self._card_facts()
        repo = self.hub_model_id or self.args.hub_model_id
        return prepare(weights, folder, repo=repo, facts=facts, evaluation_files=files).folder

    def _upload(self, folder: Path, message: str | None, token: str | None) -> str:
        from progpo_trl.publishing.hub import upload

        if self.hub_model_id is None:  # push_to_hub: false, and it was called all the same
            self.init_hf_repo(token)
        token = token or self.args.hub_token
        return upload(
            folder, self.hub_model_id, private=bool(self.args.hub_private_repo), token=token, message=message
        )


def _without_tokens(args):
    """The same arguments, usable as they are, without what must be in no file: their tokens, and those with which a
    model is loaded."""
    from progpo_trl.settings import without_secrets

    shown = copy.copy(args)
    for name, value in vars(args).items():
        if isinstance(value, str) and not without_secrets({name: value}):
            setattr(shown, name, None)
        elif isinstance(value, dict):
            kept = without_secrets(value)
            if kept != value:
                setattr(shown, name, kept)
    return shown
