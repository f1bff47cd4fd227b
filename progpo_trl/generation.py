"""Who produces the tokens of one turn.

`CachedGeneration` is the default on the transformers backend: its own decoding loop, which keeps the KV cache of every
live episode across turns where the context extends what was cached, and draws each episode's randomness from that
episode's own stream, so that batch composition and process do not change what an episode samples.
Everything else (vLLM, continuous batching, sharded weights, unusual generation options) goes through TRL's own
generation: `generation_trl`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.generation import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


@dataclass(slots=True)
class TurnOutput:
    """Sampled ids of one turn (int32, the end token included if it was sampled), their log-probabilities under the
    sampling distribution (float32, or None), and whether the turn was cut at the token limit. text: the response of
    whoever answers in text; None where it is decoded from the ids."""

    ids: np.ndarray
    logprobs: np.ndarray | None
    truncated: bool
    text: str | None = None


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None

    def processors(self) -> LogitsProcessorList:
        """The filters of transformers, in the order `generate` applies them (temperature comes before)."""
        out = LogitsProcessorList()
        if self.top_k:
            out.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1.0:
            out.append(TopPLogitsWarper(self.top_p))
        if self.min_p is not None:
            out.append(MinPLogitsWarper(self.min_p))
        return out


def episode_stream(seed: int, step: int, task_id: str, sample: int, attempt: int = 0) -> np.random.Generator:
    """The random stream of one episode, from (seed, training step, task, sample within the task, attempt).

    Every turn draws `max_new_tokens` uniforms from it, whether it needs them or not, so that turn k of an episode has
    the same randomness however long the turns before it were.
    """
    text = f"{seed}|{step}|{task_id}|{sample}|{attempt}".encode()
    key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def common_prefix(sequences: Sequence[np.ndarray]) -> int:
    """How many ids all `sequences` begin with, leaving each at least one of its own."""
    width = min(len(s) for s in sequences) - 1
    head = np.stack([s[:width] for s in sequences])
    differs = (head != head[0]).any(0)
    return int(differs.argmax()) if differs.any() else width


class CachedGeneration:
    """Turn-by-turn decoding for a fixed policy (one rollout). Rows of the batch are live episodes.

    Cached rows are described by `_history`: the ids whose keys and values are in the cache, in order. The cache has
    more columns than that: padding between turns and after a finished row leaves holes, which the attention mask
    hides. A context that does not extend its history, or more holes than half the longest history, rebuilds the cache.
    Rebuilding, as a window context does every turn, encodes equal contexts and a common beginning only once. Models
    with sliding-window or recurrent layers are encoded anew every turn.

    on_tokens: gets each new token of the rows, (rows,) ids, as it is sampled; for whoever shows them.
    """

    HOLES = 1.5
    SHARED = 16  # a shorter common beginning is not worth a forward pass of its own

    def __init__(
        self,
        model,
        *,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        sampling: Sampling,
        on_tokens: Callable[[np.ndarray], None] | None = None,
    ):
        self.on_tokens = on_tokens
        self.model, self.sampling, self.pad = model, sampling, pad_token_id
        self.device = next(model.parameters()).device
        self._eos = torch.tensor(sorted(eos_token_ids), device=self.device)
        self._processors = sampling.processors()
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        # transformers renamed the argument; models that only know the old name still exist.
        self._cache_name = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
        self._config = base.config
        # A sliding window counts cached columns, holes included, and recurrent states cannot be cut or copied: models
        # that have either encode every turn anew, left-padded, which leaves no holes.
        text = base.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ())
        self._plain = kinds <= {"full_attention"} and (bool(kinds) or not getattr(text, "sliding_window", None))
        self.reset()
        self.reused_turns = self.rebuilt_turns = self.encoded_tokens = 0

    def reset(self) -> None:
        """Forget the cache (the weights changed, or other episodes follow)."""
        self._keys: list[Any] = []
        self._history: list[np.ndarray] = []
        self._cache = self._mask = None

    @torch.no_grad()
    def turn(
        self,
        keys: Sequence[Any],
        contexts: Sequence[np.ndarray],
        max_new_tokens: int,
        streams: Sequence[np.random.Generator] | None = None,
    ) -> list[TurnOutput]:
        """Sample one turn for every episode.

        keys: what names each episode across turns; contexts: int prompt ids of each; streams: each episode's random
        stream (not needed when greedy).
        """
        if not keys:
            return []
        uniforms = None
        if self.sampling.temperature > 0:
            draws = np.stack([stream.random(max_new_tokens) for stream in streams])
            uniforms = torch.from_numpy(draws).to(self.device)
        logits, length = self._prefill(list(keys), contexts)
        sampled, logprobs, live = [], [], torch.ones(len(keys), dtype=torch.bool, device=self.device)
        going = np.ones(len(keys), bool)  # `live` on the host: read once a token, since each read waits for the device
        counts = np.zeros(len(keys), np.int64)
        while True:
            token, logprob = self._draw(logits, None if uniforms is None else uniforms[:, len(sampled)])
            sampled.append(token)
            logprobs.append(logprob)
            counts += going
            if self.on_tokens is not None:
                self.on_tokens(token.cpu().numpy())
            live = live & ~torch.isin(token, self._eos)
            going = live.cpu().numpy()
            if len(sampled) == max_new_tokens or not going.any():
                break
            # Rows that have ended are fed padding, which the mask turns into a hole.
            column = live[:, None].long()
            fed = torch.where(live, token, self.pad)[:, None]
            self._mask = torch.cat([self._mask, column], 1)
            logits = self._forward(fed, length[:, None])
            length = length + column[:, 0]
        ids = torch.stack(sampled, 1).cpu().numpy().astype(np.int32)
        lps = torch.stack(logprobs, 1).cpu().numpy().astype(np.float32)
        self._keys = list(keys)
        # The last sampled id of a row was never fed: it is cached with the next turn's delta.
        self._history = [np.concatenate([c, ids[i, : counts[i] - 1]]) for i, c in enumerate(contexts)]
        return [TurnOutput(ids[i, :n].copy(), lps[i, :n].copy(), bool(going[i])) for i, n in enumerate(counts)]

    def _draw(self, logits: torch.Tensor, uniform: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """One token per row by inverse transform sampling, and its log-probability; both (rows,)."""
        logits = logits.float()
        if uniform is None:
            logprobs = logits.log_softmax(-1)
            token = logits.argmax(-1)
        else:
            logits = logits / self.sampling.temperature
            if self._processors:
                logits = self._processors(None, logits)
            logprobs = logits.log_softmax(-1)
            # float64: with 150,000 float32 terms the tail of the cumulative sum would be off by more than its values
            cumulative = logprobs.double().exp().cumsum(-1)
            target = uniform.double()[:, None] * cumulative[:, -1:]
            token = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.size(-1) - 1)
        return token, logprobs.gather(-1, token[:, None])[:, 0]

    def _prefill(self, keys: list, contexts: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode what is not cached yet. Returns the logits after each context and the contexts' lengths."""
        rows = self._rows_to_keep(keys, contexts)
        if rows is None:
            self.rebuilt_turns += 1
            return self._encode(contexts)
        self.reused_turns += 1
        if rows != list(range(len(self._keys))):
            self._select(rows)
        return self._extend([c[len(self._history[r]) :] for r, c in zip(rows, contexts, strict=True)])

    def _encode(self, contexts: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode `contexts` from nothing: each distinct one once, and what all of them begin with once for all."""
        self._cache = DynamicCache(config=self._config)
        if not self._plain:
            self._mask = torch.zeros(len(contexts), 0, dtype=torch.long, device=self.device)
            return self._extend(contexts)
        seen: dict[bytes, int] = {}
        copies = [seen.setdefault(np.asarray(c, np.int64).tobytes(), len(seen)) for c in contexts]
        distinct = [np.frombuffer(ids, np.int64) for ids in seen]
        shared = common_prefix(distinct)
        self._mask = torch.zeros(1, 0, dtype=torch.long, device=self.device)
        if len(distinct) > 1 and shared >= self.SHARED:
            self._extend([distinct[0][:shared]])
            self._select([0] * len(distinct))
            distinct = [c[shared:] for c in distinct]
        else:
            self._mask = self._mask.expand(len(distinct), 0)
        logits, lengths = self._extend(distinct)
        if len(distinct) < len(contexts):
            self._select(copies)
            logits, lengths = logits[copies], lengths[copies]
        return logits, lengths

    def _extend(self, fresh: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode `fresh` ids behind what each row has cached. Returns the logits after them and the rows' lengths."""
        ids, mask = self._left_pad(fresh)
        cached = self._mask.sum(1)
        self._mask = torch.cat([self._mask, mask], 1)
        self.encoded_tokens += int(sum(len(f) for f in fresh))
        positions = (cached[:, None] + mask.cumsum(1) - 1).clamp(min=0)
        return self._forward(ids, positions), cached + mask.sum(1)

    def _select(self, rows: Sequence[int]) -> None:
        """Keep these cached rows, in this order; a row may be taken several times."""
        index = torch.tensor(rows, device=self.device)
        self._cache.batch_select_indices(index)
        self._mask = self._mask[index]

    def _rows_to_keep(self, keys: list, contexts: Sequence[np.ndarray]) -> list[int] | None:
        """Cached rows of `keys` in their order, or None when the cache cannot serve them."""
        place = {key: i for i, key in enumerate(self._keys)}
        if not self._plain or self._cache is None or any(key not in place for key in keys):
            return None
        rows = [place[key] for key in keys]
        for row, context in zip(rows, contexts, strict=True):
            known = self._history[row]
            if len(context) <= len(known) or not np.array_equal(context[: len(known)], known):
                return None
        widest = max(len(c) - len(self._history[r]) for r, c in zip(rows, contexts, strict=True))
        if self._mask.size(1) + widest > self.HOLES * max(len(c) for c in contexts):
            return None
        return rows

    def _left_pad(self, sequences: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(s) for s in sequences)
        ids = np.full((len(sequences), width), self.pad, np.int64)
        mask = np.zeros((len(sequences), width), np.int64)
        for i, s in enumerate(sequences):
            ids[i, width - len(s) :] = s
            mask[i, width - len(s) :] = 1
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        return out.logits[:, -1]
