"""ProxMO: episode signal modulated by how hard the task is, step baselines from nearby observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from progpo_trl.advantages.base import (
    StepEstimator,
    check_at_least,
    check_choice,
    check_flag,
    check_whole,
    fold,
    group_codes,
    group_statistics,
    load_function,
    normalise_in_sets,
)
from progpo_trl.advantages.gigpo import set_sizes
from progpo_trl.advantages.grpo import STATS, check_episode_options, episode_terms, trajectory_sample
from progpo_trl.advantages.observations import check_observation_options, code_observations
from progpo_trl.advantages.proximity import TfidfVectors, Vectors, embedding_vectors, soft_baseline
from progpo_trl.advantages.returns import step_returns
from progpo_trl.episodes import StepBatch


@dataclass(frozen=True)
class ProxMO(StepEstimator):
    """Modulated episode term plus w times a soft step term.

        A[i,t]   = W * A_E[i,t] + w * A_P[i,t]
        A_E      the advantage of `GRPO` with the same norm, stats, eps and singleton
        W        = 1 + beta * max(0, g) for a success, 1 + beta * min(0, g) for a failure,
                   g = sigmoid(alpha * (1 - 2p)) - 1/2, p the group's success rate        psc_form="logistic"
        A_P[i,t] = G[i,t] - sum_j q_j G[j],  q = softmax over the group's steps of cos(x[i,t], x[j]) / tau

    x are TF-IDF vectors of the observations (scikit-learn's defaults, `max_features` terms); G as in `GiGPO`. A
    success on a hard task counts more, a failure on an easy one less.

    Source: ProxMO (arXiv:2602.19225) and its authors' release. The typeset equations were not at hand. "logistic" is
    our reconstruction of the paper: it gives the authors' 1.05 / 1.0 / 0.95 at p = 0 / 0.5 / 1 with their alpha = 4
    and beta = 0.1, and has the code's signs. Each deviation of the release is one option, and preset released_code
    sets them all:
      psc_form="power"         f = sigmoid((1-p)^alpha) - 1/2, or sigmoid(-p^alpha) - 1/2 for a failure
      psc_range=0.05           beta such that W stays within 1 +- psc_range (their scripts), in place of beta
      psc_success="raw_score"  success is row score > 0.5 and p the mean row score clipped to [0, 1], so that with
                               rewards of 10 three successes of eight already count as "easy"; "flag" is the
                               environment's success
      psc_stats="steps"        p over steps, where long episodes weigh more; "trajectories" over episodes
      norm="mean"              no division by the sd in the episode term
      stats="steps", singleton="raw", zero_spread_guard=False   as in `GRPO`; "raw" also takes p = 0 for one score
      tfidf_scope="batch"      TF-IDF fitted on the whole batch, so that a group's advantages depend on the others;
                               "group" fits each group by itself
    More options: psc=False leaves W = 1 (ablation); psc_form may be a function (p, success) -> f with W = 1 + beta f.
    aggregation="exact" takes GiGPO's step term instead of A_P (with `norm`), "none" leaves it out (ablation).
    psa_candidates="same_step" compares only steps of the same index, as one auditor reads Eq. 10; exclude_self leaves
    the step itself out of its baseline. embed: a function list of texts -> (n, size) vectors in place of TF-IDF (a
    sentence-embedding model, say). obs_key, ignore_obs: see `observations.code_observations`; a step with an ignored
    observation has A_P = 0 and is no candidate. tau = 0 is the limit: the mean over the nearest steps. A group
    without any token has A_P = 0.
    Read with care: "tau -> 0 is exact matching" holds of TF-IDF vectors, which merge texts that differ in case,
    punctuation, word order or one-character words; and at tau = 0.1 a state unlike all others still has A_P near 0.
    """

    w: float = 1.0
    gamma: float = 0.95
    norm: str = "mean_std"
    stats: str = "trajectories"
    psc: bool = True
    psc_form: str | Callable = "logistic"
    alpha: float = 4.0
    beta: float | None = None
    psc_range: float | None = None
    psc_success: str = "flag"
    psc_stats: str = "trajectories"
    aggregation: str = "soft"
    tau: float = 0.1
    psa_candidates: str = "all"
    exclude_self: bool = False
    tfidf_scope: str = "group"
    max_features: int | None = 1024
    embed: str | Callable | None = None
    eps: float = 1e-6
    singleton: str = "zero"
    zero_spread_guard: bool = True
    obs_key: str | Callable | None = None
    ignore_obs: tuple[str, ...] = ()

    PAPER: ClassVar[str] = "2602.19225"
    RELEASED: ClassVar[dict[str, Any]] = {
        "psc_form": "power",
        "psc_range": 0.05,
        "psc_success": "raw_score",
        "psc_stats": "steps",
        "norm": "mean",
        "stats": "steps",
        "singleton": "raw",
        "zero_spread_guard": False,
        "tfidf_scope": "batch",
    }

    @classmethod
    def released_code(cls, **options: Any):
        """As in the authors' released code; giving `beta` takes the place of its `psc_range`."""
        if options.get("beta") is not None:
            options = {"psc_range": None, **options}
        return super().released_code(**options)

    def __post_init__(self):
        check_episode_options("proxmo", self)
        for name, choices in (
            ("psc_success", ("flag", "raw_score")),
            ("psc_stats", STATS),
            ("aggregation", ("soft", "exact", "none")),
            ("psa_candidates", ("all", "same_step")),
            ("tfidf_scope", ("group", "batch")),
        ):
            check_choice("proxmo", name, getattr(self, name), choices)
        for name in ("psc", "exclude_self"):
            check_flag("proxmo", name, getattr(self, name))
        for name in ("w", "alpha", "tau"):
            check_at_least("proxmo", name, getattr(self, name), 0.0)
        for name in ("beta", "psc_range"):
            if getattr(self, name) is not None:
                check_at_least("proxmo", name, getattr(self, name), 0.0)
        check_at_least("proxmo", "gamma", self.gamma, 0.0, 1.0)
        if self.max_features is not None:
            check_whole("proxmo", "max_features", self.max_features, 1)
        if isinstance(self.psc_form, str) and ":" not in self.psc_form:
            check_choice("proxmo", "psc_form", self.psc_form, ("logistic", "power"))
        else:
            object.__setattr__(self, "psc_form", load_function("proxmo", "psc_form", self.psc_form))
            if self.psc_range is not None:
                raise ValueError("proxmo: psc_range needs a named psc_form; give beta with a function of your own")
        if self.beta is not None and self.psc_range is not None:
            raise ValueError("proxmo: give beta or psc_range, which derives it, not both")
        object.__setattr__(self, "embed", load_function("proxmo", "embed", self.embed))
        check_observation_options("proxmo", self)

    # ------------------------------------------------------------------------------------------------ modulation

    @property
    def strength(self) -> float:
        """beta as given, as derived from psc_range, or the paper's 0.1."""
        if self.psc_range is not None:
            largest = _sigmoid(1.0 if self.psc_form == "power" else self.alpha) - 0.5
            return self.psc_range / largest if largest > 0 else 0.0
        return 0.1 if self.beta is None else self.beta

    def modulation(self, batch: StepBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Success rate p of each step's group, whether its episode counts as a success, and its weight W."""
        n_groups, code = group_codes(batch)
        if self.psc_success == "flag":
            success = batch.success[batch.episode]
            value = success.astype(float)
        else:
            success, value = batch.row_score > 0.5, batch.row_score
        if self.psc_stats == "steps":
            codes, sample = code, value
        else:
            first, unplayed, their_code = trajectory_sample(batch)
            theirs = batch.success if self.psc_success == "flag" else batch.episode_return
            codes = np.concatenate([code[first], their_code])
            sample = np.concatenate([value[first], theirs[unplayed].astype(float)])
        count, rate, _, _ = group_statistics(codes, sample, n_groups, ddof=1)
        if self.singleton == "raw":
            rate = np.where(count == 1, 0.0, rate)  # the released code takes 0 for the mean of one score
        rate = np.clip(rate, 0.0, 1.0)[code]
        if not self.psc:
            return rate, success, np.ones(len(batch))
        if self.psc_form == "logistic":
            g = _sigmoid(self.alpha * (1 - 2 * rate)) - 0.5
            f = np.where(success, np.maximum(g, 0.0), np.minimum(g, 0.0))
        elif self.psc_form == "power":
            f = np.where(success, _sigmoid((1 - rate) ** self.alpha), _sigmoid(-(rate**self.alpha))) - 0.5
        else:
            f = np.asarray(self.psc_form(rate, success), float)
            if f.shape != rate.shape:
                raise ValueError(f"proxmo: psc_form returned shape {f.shape} for {len(rate)} steps")
        return rate, success, 1.0 + self.strength * f

    # ----------------------------------------------------------------------------------------------- aggregation

    def step_term(self, batch: StepBatch, returns: np.ndarray) -> np.ndarray:
        """(n_steps,) A_P (or what `aggregation` puts in its place)."""
        if self.aggregation == "none":
            return np.zeros(len(batch))
        if self.aggregation == "exact":
            anchors = self._anchors(batch)
            return normalise_in_sets(returns, anchors, norm=self.norm, eps=self.eps, ddof=1)[3]
        out = np.zeros(len(batch))
        for rows, local, vectors in self.candidate_sets(batch):
            values = returns[rows]
            # Differences to one of the values: a constant set is exactly 0 then, and rounding stays small.
            if np.ptp(values) > 1e-9 * max(1.0, np.abs(values).max()):
                values = values - values[0]
                out[rows] = values - soft_baseline(vectors, local, values, self.tau, self.exclude_self)
        return out

    def candidate_sets(self, batch: StepBatch):
        """For each set of steps that are compared: their rows, the text of each as 0..n-1, the texts' unit vectors."""
        observations = code_observations(batch, self.obs_key, self.ignore_obs)
        vectors_of = self._vectors(observations.step, observations.texts)
        kept = np.flatnonzero(observations.step >= 0)
        group = group_codes(batch)[1][kept]
        for members in _parts(group):
            rows = kept[members]
            codes, local, copies = np.unique(observations.step[rows], return_inverse=True, return_counts=True)
            vectors = vectors_of(codes, copies)
            if vectors is None:
                continue
            if self.psa_candidates == "all":
                yield rows, local, vectors
                continue
            for same in _parts(batch.step[rows]):
                texts, place = np.unique(local[same], return_inverse=True)
                yield rows[same], place, vectors[texts]

    def nearest(self, batch: StepBatch, group: int, count: int = 3) -> dict[int, list[tuple[int, float]]]:
        """For each step of a group (a value of batch.episode_group): the states its baseline is mostly made of.

        Each is (a step that saw it first, its share of the weight, of all steps that saw it), the largest first.
        """
        out: dict[int, list[tuple[int, float]]] = {}
        for rows, local, vectors in self.candidate_sets(batch):
            if self.aggregation != "soft" or batch.group[rows[0]] != group:
                continue
            first = np.unique(local, return_index=True)[1]
            copies = np.bincount(local)
            for row, text in zip(rows.tolist(), local.tolist(), strict=True):
                cosine = vectors.cosines(np.array([text]))[0]
                weight = np.exp((cosine - cosine.max()) / self.tau) if self.tau else cosine >= cosine.max() - 1e-9
                weight = weight * (copies - (np.arange(len(copies)) == text) * self.exclude_self)
                share = weight / max(weight.sum(), np.finfo(float).tiny)
                best = np.argsort(-share, kind="stable")[:count]
                out[row] = [(int(rows[first[i]]), float(share[i])) for i in best.tolist()]
        return out

    def _vectors(self, code: np.ndarray, texts: list[str]) -> Vectors:
        """The function (texts of a group, copies of each) -> their vectors."""
        used, copies = np.unique(code[code >= 0], return_counts=True)
        # Final observations have codes too but are no candidates: only texts of steps are counted.
        place = np.full(len(texts) + 1, -1)
        place[used] = np.arange(len(used))
        chosen = [texts[i] for i in used.tolist()]
        if self.embed is not None:
            vectors_of = embedding_vectors(chosen, self.embed)
        elif self.tfidf_scope == "group":
            vectors_of = TfidfVectors(chosen, self.max_features)
        else:
            vectors_of = TfidfVectors(chosen, self.max_features).fitted(np.arange(len(used)), copies)
        return lambda codes, copies: vectors_of(place[codes], copies)

    @property
    def group_wise(self) -> bool:
        """Unless TF-IDF is fitted on the batch; an embedding model is asked once, for all texts."""
        return self.aggregation != "soft" or (self.tfidf_scope == "group" and self.embed is None)

    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """Episode term, its modulation, return, and the step term with its baseline."""
        terms = episode_terms(batch, self)
        rate, success, weight = self.modulation(batch)
        returns = step_returns(batch, self.gamma)
        step = self.step_term(batch, returns)
        terms |= {
            "success rate p": rate,
            "counts as success": success,
            "modulation W": weight,
            "return": returns,
            "baseline": returns - step,
            "step term": step,
        }
        return {**terms, "advantage": weight * terms["episode term"] + self.w * step}

    def diagnostics(self, batch: StepBatch) -> dict[str, float]:
        """Range of the modulation, and the exact anchors that soft aggregation does without."""
        if len(batch) == 0:
            return {}
        weight = self.modulation(batch)[2]
        return {
            "proxmo/modulation_min": float(weight.min()),
            "proxmo/modulation_max": float(weight.max()),
            **set_sizes("anchors", [self._anchors(block) for block in batch.blocks]),
        }

    def _anchors(self, batch: StepBatch) -> np.ndarray:
        return fold(group_codes(batch)[1], code_observations(batch, self.obs_key, self.ignore_obs).step)


def _parts(code: np.ndarray) -> list[np.ndarray]:
    """Indices of each distinct value of `code`, in their order."""
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(code) else []


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))
