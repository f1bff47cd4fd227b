"""Each formula of the estimators once more, as plain Python loops over steps: what benchmarks/advantages.py compares
with. Written for reading, from the formulas in the estimators' docstrings; options are those of the benchmark.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from statistics import fmean, pstdev, stdev

from progpo_trl.episodes import StepBatch

EPS = 1e-6


def grpo(batch: StepBatch) -> list[float]:
    """stats="trajectories", norm="mean_std"."""
    first: dict[int, float] = {}
    for episode, score in zip(batch.episode.tolist(), batch.row_score.tolist(), strict=True):
        first.setdefault(episode, score)
    sample = defaultdict(list)
    for episode, score in first.items():
        sample[int(batch.episode_group[episode])].append(score)
    statistics = {g: (fmean(s), stdev(s) + EPS if len(set(s)) > 1 else 1.0) for g, s in sample.items()}
    out = []
    for group, score in zip(batch.group.tolist(), batch.row_score.tolist(), strict=True):
        mean, spread = statistics[group]
        out.append((score - mean) / spread)
    return out


def returns(batch: StepBatch, gamma: float = 0.95) -> list[float]:
    """Discounted rewards from each step on, less its penalty."""
    out, after = [0.0] * len(batch), defaultdict(float)
    for row in range(len(batch) - 1, -1, -1):
        episode = int(batch.episode[row])
        after[episode] = float(batch.reward[row]) + gamma * after[episode]
        out[row] = after[episode] - float(batch.penalty[row])
    return out


def gigpo(batch: StepBatch) -> list[float]:
    """Episode term and exact anchors."""
    values, anchors = returns(batch), defaultdict(list)
    keys = list(zip(batch.group.tolist(), batch.observation.tolist(), strict=True))
    for key, value in zip(keys, values, strict=True):
        anchors[key].append(value)
    statistics = {key: (fmean(v), stdev(v)) for key, v in anchors.items() if len(v) > 1}
    out = grpo(batch)
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        if key in statistics:
            mean, spread = statistics[key]
            out[row] += (value - mean) / (spread + EPS)
    return out


def hgpo(batch: StepBatch, history: int = 4) -> list[float]:
    """Depths 0 to `history`, weights d + 2."""
    values, contexts = returns(batch), [[] for _ in range(history + 1)]
    seen = defaultdict(list)
    for row, text in enumerate(batch.observation.tolist()):
        episode = int(batch.episode[row])
        seen[episode].append(text)
        for depth in range(history + 1):
            far_enough = len(seen[episode]) > depth
            key = (int(batch.group[row]), *seen[episode][-depth - 1 :]) if far_enough else None
            contexts[depth].append(key)
    sums, weights = [0.0] * len(batch), [0.0] * len(batch)
    for depth, keys in enumerate(contexts):
        sets = defaultdict(list)
        for key, value in zip(keys, values, strict=True):
            sets[key].append(value)
        differ = {key: v for key, v in sets.items() if key is not None and max(v) - min(v) > 1e-7}
        statistics = {key: (fmean(v), pstdev(v)) for key, v in differ.items()}
        for row, key in enumerate(keys):
            if key not in statistics:
                continue
            mean, spread = statistics[key]
            item = (values[row] - mean) / (spread + EPS)
            if item != 0:
                sums[row] += (depth + 2) * item
                weights[row] += depth + 2
    return [s / (w + EPS) for s, w in zip(sums, weights, strict=True)]


def progpo(batch: StepBatch) -> list[float]:
    """The fallback alone."""
    seen, steps = defaultdict(set), Counter(batch.episode.tolist())
    for episode, text in zip(batch.episode.tolist(), batch.observation.tolist(), strict=True):
        seen[episode].add(text)
    coverage = []
    for episode, text in enumerate(batch.final_observation.tolist()):
        coverage.append((len(seen[episode] | {text}) - 1) / steps[episode])
    members = defaultdict(list)
    for episode, group in enumerate(batch.episode_group.tolist()):
        members[group].append(episode)
    fails = {g for g, m in members.items() if max(abs(float(batch.episode_return[e])) for e in m) < 1e-3}
    out = [0.0] * batch.n_episodes
    for group in fails:
        values = [coverage[e] for e in members[group]]
        if pstdev(values) >= 1e-4:
            for e in members[group]:
                scale = 0.3 * len(fails) / len(members)
                out[e] = scale * (coverage[e] - fmean(values)) / pstdev(values)
    return [out[episode] for episode in batch.episode.tolist()]


def soft_aggregation(batch: StepBatch, tau: float = 0.1) -> list[float]:
    """ProxMO's step term, TF-IDF fitted per group, all pairs of steps."""
    values, out = returns(batch), [0.0] * len(batch)
    members = defaultdict(list)
    for row, group in enumerate(batch.group.tolist()):
        members[group].append(row)
    for rows in members.values():
        counts = [Counter(re.findall(r"\b\w\w+\b", batch.observation[row].lower())) for row in rows]
        frequency = Counter(term for count in counts for term in count)
        vectors = []
        for count in counts:
            weighed = {t: c * (math.log((1 + len(rows)) / (1 + frequency[t])) + 1) for t, c in count.items()}
            length = math.sqrt(sum(v * v for v in weighed.values())) or 1.0
            vectors.append({t: v / length for t, v in weighed.items()})
        for row, x in zip(rows, vectors, strict=True):
            total = summed = 0.0
            for other, y in zip(rows, vectors, strict=True):
                weight = math.exp(sum(v * y.get(t, 0.0) for t, v in x.items()) / tau)
                total += weight
                summed += weight * values[other]
            out[row] = values[row] - summed / total
    return out


def similar_anchors(batch: StepBatch, threshold: float = 0.95) -> list[tuple[int, str]]:
    """The leader of each step."""
    leaders: dict[int, list[str]] = defaultdict(list)
    out = []
    for group, text in zip(batch.group.tolist(), batch.observation.tolist(), strict=True):
        for leader in leaders[group]:
            if SequenceMatcher(None, text, leader).ratio() >= threshold:
                break
        else:
            leader = text
            leaders[group].append(text)
        out.append((group, leader))
    return out
