"""The gradient of a frozen case in float64: one row at a time, no padding, plain logits, a loss written here.

Shares nothing with the package: rows are put together by hand, and the formulas are those of the papers behind TRL's
loss types (Dr. GRPO, DAPO, GSPO for the sequence level, CISPO, SAPO, LUSPO, VESPO).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
import toy
from frozen import EPSILON_HIGH, GROUP, Case, material, policy

LONGEST = 256  # max_completion_length of the cases, the constant of dr_grpo


def rows_by_hand(case: Case, vocabulary: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """(prompt, completion, mask, advantage per token) of every training row, without the package's row assembly."""
    rows = []
    for number, turns in enumerate(material(case.context, case.layout, vocabulary)):
        if case.crash and number < GROUP:  # one is lost, and nothing is left to compare the other with
            continue
        if case.context == "window":
            rows += [(p, c, np.ones(len(c)), np.full(len(c), a)) for p, c, a in turns]
            continue
        prompt, first, advantage = turns[0]
        ids, mask, values = list(first), [1] * len(first), [advantage] * len(first)
        for between, sampled, a in turns[1:]:
            ids += [*between, *sampled]
            mask += [0] * len(between) + [1] * len(sampled)
            values += [0.0] * len(between) + [a] * len(sampled)
        rows.append((prompt, np.array(ids), np.array(mask), np.array(values)))
    return rows


def log_probabilities(model, prompt: np.ndarray, completion: np.ndarray) -> torch.Tensor:
    ids = torch.tensor(np.concatenate([prompt, completion]))[None]
    table = model(ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    return table.gather(-1, ids[0, len(prompt) :, None])[:, 0]


@functools.cache
def start_log_probabilities(folder: str, beta: float, context: str, layout: str) -> list[torch.Tensor]:
    """Of every row, under the policy the trainer starts from (beta 0: under the reference model)."""
    model = policy(folder, beta).double()
    rows = rows_by_hand(Case(context, layout=layout), model.config.vocab_size)
    with torch.no_grad():
        return [log_probabilities(model, prompt, completion) for prompt, completion, _, _ in rows]


def token_losses(case: Case, lp, lp_old, lp_ref, m, a) -> tuple[torch.Tensor, int]:
    """Loss of every completion token of one row, and how many sampled tokens are clipped."""
    log_ratio = lp - lp_old
    if case.level == "sequence":
        log_ratio = ((log_ratio * m).sum() / m.sum()).expand_as(lp)
    ratio = log_ratio.exp()
    clipped = torch.zeros_like(ratio, dtype=torch.bool)
    if case.loss_type == "cispo":
        bound = EPSILON_HIGH["cispo"]
        loss = -ratio.clamp(max=bound).detach() * a * lp
        clipped = (ratio > bound) & (a > 0)
    elif case.loss_type == "sapo":
        temperature = torch.where(a > 0, 1.0, 1.05).double()
        loss = -a * torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    elif case.loss_type == "vespo":
        log_w = ((lp - lp_old).clamp(-20, 20) * m).sum().clamp(np.log(1e-8), 20)
        k, strength = torch.where(a >= 0, 2.0, 3.0), torch.where(a >= 0, 3.0, 2.0)
        phi = (strength + k * log_w - strength * log_w.exp()).exp().detach()
        loss = -phi * a * lp
    else:
        # Two-sided clipping bounds the unclipped branch, too.
        free = ratio if case.delta is None else ratio.clamp(max=case.delta)
        loss = -torch.minimum(free * a, ratio.clamp(0.8, 1.2) * a)
        clipped = ((ratio < 0.8) & (a < 0)) | ((ratio > 1.2) & (a > 0))
    if case.off_policy_mask is not None:
        # DeepSeek-V3.2: tokens of negative advantage are left out where the row has drifted too far.
        drift = ((lp_old - lp.detach()) * m).sum() / m.sum()
        loss = loss * ((a >= 0) | (drift <= case.off_policy_mask))
    if case.beta:
        penalty = (lp_ref - lp).exp() - (lp_ref - lp) - 1
        loss = loss + case.beta * penalty * (1.0 if case.plain_kl else ratio)
    return loss, int(clipped[m > 0].sum())


def reference_gradient(case: Case, folder: str, weights: dict | None = None) -> dict:
    """The gradient at `weights` (default: the start), and the number of clipped tokens."""
    model = policy(folder, case.beta).double()
    if weights is not None:
        model.load_state_dict({n: w.double() for n, w in weights.items()}, strict=False)
    rows = rows_by_hand(case, len(toy.make_tokenizer()))
    skipped = len(rows_by_hand(Case(case.context, layout=case.layout), model.config.vocab_size)) - len(rows)
    old = start_log_probabilities(folder, case.beta, case.context, case.layout)[skipped:]
    reference = start_log_probabilities(folder, 0.0, case.context, case.layout)[skipped:]
    tokens = sum(mask.sum() for _, _, mask, _ in rows)
    clipped = 0
    for (prompt, completion, mask, advantage), lp_old, lp_ref in zip(rows, old, reference, strict=True):
        m, a = torch.tensor(mask).double(), torch.tensor(advantage).double()
        lp = log_probabilities(model, prompt, completion)
        losses, n = token_losses(case, lp, lp_old, lp_ref, m, a)
        clipped += n
        total = (losses * m).sum()
        if case.loss_type in ("dapo", "bnpo", "cispo", "vespo"):
            share = total / tokens
        elif case.loss_type in ("grpo", "sapo"):
            share = total / m.sum() / len(rows)
        elif case.loss_type == "dr_grpo":
            share = total / (len(rows) * LONGEST)
        elif case.loss_type == "luspo":
            share = total / len(rows)
        share.backward()
    gradient = {n: p.grad.float() for n, p in model.named_parameters()}
    return {"gradient": gradient, "clipped": clipped, "tokens_per_row": tokens / len(rows)}
