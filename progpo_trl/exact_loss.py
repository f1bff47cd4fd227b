"""ExactLossTrainer: TRL's GRPO loss, exact for rows of uneven number and length, in micro-batches of any size.

TRL's loss functions are called as they are. What is here decides which rows share a forward pass and rescales what
TRL returns, so that the gradient is that of one pass over all rows of all processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.distributed.tensor import DTensor
from trl import GRPOTrainer

from progpo_trl.faults import not_finite
from progpo_trl.losses import loss_scale, one_value_per_slice, score_sampled_tokens, take_rows
from progpo_trl.micro_batches import pack, pack_sizes


class ExactLossTrainer(GRPOTrainer):
    """GRPOTrainer with `rows_per_forward` and `max_tokens_per_forward` of MultiTurnGRPOConfig.

    A batch needs `num_rows_in_batch` beside what TRL puts in it: the real rows of all processes' generation, 0-dim.
    While TRL scores a whole generation (old and reference policy), `_sampled_mask(width)` tells which tokens count.
    """

    _chunk_mask: torch.Tensor | None = None

    def _sampled_mask(self, width: int) -> torch.Tensor:
        """(rows, width), 1 on sampled tokens, of the generation that is being scored."""
        raise ValueError("only a trainer that hands its rows to TRL can score a generation")

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        """As in TRL, for sampled tokens only; a whole generation is scored in trimmed micro-batches."""
        with self.accelerator.autocast():
            if self._chunk_mask is not None:
                scored = score_sampled_tokens(model, input_ids, attention_mask, self._chunk_mask, logits_to_keep)
                return *scored, None
            sampled = self._sampled_mask(logits_to_keep).to(input_ids.device)
            logps = torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device)
            for index in self._micro_batches(attention_mask.sum(1)):
                ids, mask = input_ids[index], attention_mask[index]
                logps[index] = score_sampled_tokens(model, ids, mask, sampled[index], logits_to_keep)[0].float()
        return logps, None, None

    def _micro_batches(self, lengths: torch.Tensor) -> list[torch.Tensor]:
        """Row indices of each forward pass; as many passes, of as many rows each, on all processes.

        lengths: (rows,) tokens of each row; all processes hold equally many.
        """
        rows, tokens = self.args.rows_per_forward, self.args.max_tokens_per_forward
        if rows is None and tokens is None:
            rows = self.args.per_device_train_batch_size
        everyone = lengths[None]
        if tokens is not None and self.accelerator.num_processes > 1:
            everyone = self.accelerator.gather(everyone)
        sizes = pack_sizes(everyone.cpu().numpy(), rows=rows, tokens=tokens)
        return [torch.from_numpy(chunk).to(lengths.device) for chunk in pack(lengths.cpu().numpy(), sizes)]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """TRL's loss, micro-batch by micro-batch; all but the last are back-propagated here."""
        if return_outputs:
            raise ValueError("the GRPO trainers do not return outputs")
        chunks = self._micro_batches(inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1))
        total = torch.zeros((), device=inputs["completion_mask"].device)
        with one_value_per_slice(self._metrics["train"], self._tokens_of_chunks(inputs, chunks)):
            for index in chunks[:-1]:
                with self._inner_pass(model) as options:
                    loss = self._scaled_loss(model, take_rows(inputs, index))
                    self.accelerator.backward(loss, **options)
                total = total + loss.detach()
            loss = self._scaled_loss(model, take_rows(inputs, chunks[-1])) + total
        # Before the last backward pass, in which DeepSpeed takes its optimizer step.
        self._stop_unless_finite(f"the loss of step {self.state.global_step + 1}", loss)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """transformers' last call before the optimizer step, clipping or not. DeepSpeed has taken its step by then,
        but nothing is saved of it."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # The loss scaling of float16 begins too high on purpose, and leaves out the steps whose gradients overflow.
        if norm is not None and self.accelerator.mixed_precision != "fp16":
            self._stop_unless_finite(f"the gradient norm of step {self.state.global_step + 1}", norm)
        return norm

    def train(self, *args, **kwargs):
        """As in transformers. Raises TrainingStopped, on all processes, when the loss, a gradient or the trained
        weights are no finite numbers."""
        output = super().train(*args, **kwargs)
        # No loss has seen the weights of the last step. Their sum is as finite as they are; each process has its own,
        # or its own part of them (FSDP's are DTensors, ZeRO-3 keeps them beside an empty parameter).
        trained = (getattr(p, "ds_tensor", p) for p in self.model.parameters() if p.requires_grad)
        trained = (p.to_local() if isinstance(p, DTensor) else p for p in trained)
        total = sum(p.detach().sum(dtype=torch.float32).to(self.accelerator.device) for p in trained)
        self._stop_unless_finite(f"the sum of the weights after step {self.state.global_step}", total)
        return output

    def _stop_unless_finite(self, what: str, value: torch.Tensor | float) -> None:
        """Raise TrainingStopped on all processes if `value` is no finite number on one of them."""
        value = value.full_tensor() if isinstance(value, DTensor) else value
        values = torch.as_tensor(value, device=self.accelerator.device).detach().float().reshape(1)
        if self.accelerator.num_processes > 1:
            values = self.accelerator.gather(values)
        bad = values[~values.isfinite()]
        if len(bad):
            raise not_finite(what, bad[0].item(), self.args.output_dir, self.state.global_step)

    def _tokens_of_chunks(self, inputs, chunks) -> list[float]:
        """Sampled tokens of every chunk over all processes: the weights of their metrics."""
        tokens = (inputs["completion_mask"] * inputs["tool_mask"]).sum(1)
        counts = torch.stack([tokens[index].sum() for index in chunks]).float()
        if self.accelerator.num_processes > 1:
            counts = self.accelerator.reduce(counts, "sum")
        return counts.tolist()

    def _scaled_loss(self, model, chunk) -> torch.Tensor:
        mask = self._chunk_mask = chunk["completion_mask"] * chunk["tool_mask"]
        try:
            loss = self._compute_loss(model, chunk)
        finally:
            self._chunk_mask = None
        return loss * loss_scale(
            self.loss_type,
            chunk_rows=len(mask),
            chunk_tokens=mask.sum(),
            total_rows=chunk["num_rows_in_batch"],
            total_tokens=chunk["num_items_in_batch"],
            processes=self.accelerator.num_processes,
            slices=self.args.steps_per_generation,
        )

    @contextlib.contextmanager
    def _inner_pass(self, model) -> Iterator[dict]:
        """A pass that is not the last of its slice; yields the options of its backward.

        TRL does not take it for the end of an accumulation, and DDP does not reduce its gradients. Sharded gradients
        (DeepSpeed's ZeRO, FSDP) have no place to wait unreduced: they are reduced in every pass and add up, which is
        the same sum; only DeepSpeed's optimizer step must wait for the last.
        """
        state = self.accelerator.gradient_state
        before = state.sync_gradients
        state._set_sync_gradients(False)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        try:
            with contextlib.nullcontext() if sharded else self.accelerator.no_sync(model):
                yield {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        finally:
            state._set_sync_gradients(before)
