"""The words of `explain()`: why one step got its advantage, for each estimator."""

from __future__ import annotations

from typing import Any

from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, Estimator, GiGPO, ProGPO, ProxMO


def because(estimator: Estimator, terms: dict[str, Any]) -> str:
    """Why one step got its advantage; terms: the step's values of `estimator.terms()`."""
    words = next((say for cls, say in _WORDS.items() if isinstance(estimator, cls)), None)
    if words is None:
        return "from a function that does not say more"
    return words(estimator, terms)


def _say_episode(estimator: Any, t: dict[str, Any]) -> str:
    if t["score"] == t["group mean"]:
        return f"score {t['score']:.4g} is the group's mean"
    return f"score {t['score']:.4g} against the group's mean {t['group mean']:.4g} (sd {t['group sd']:.4g})"


def _say_gigpo(estimator: GiGPO, t: dict[str, Any]) -> str:
    words = f"{t['episode term']:+.3g}: {_say_episode(estimator, t)}; {estimator.w:g} x {t['step term']:+.3g}: "
    if t["anchor size"] < 2:
        return words + "no other step of the group saw this"
    return (
        words
        + f"return {t['return']:.4g} against {t['anchor mean']:.4g} of the {t['anchor size']} steps that saw this"
    )


def _say_hgpo(estimator: HGPO, t: dict[str, Any]) -> str:
    parts = []
    for depth in range(estimator.history_length + 1):
        weight, size = t[f"depth {depth} weight"], t[f"depth {depth} size"]
        if weight > 0:
            mean = t[f"depth {depth} mean"]
            term = t[f"depth {depth} term"]
            parts.append(f"{weight:.2f} x {term:+.3g} (depth {depth}: mean {mean:.4g} of {size} steps)")
    if estimator.base_group and t["base group weight"] > 0:
        parts.append(f"{t['base group weight']:.2f} x {t['base group term']:+.3g} ({_say_episode(estimator, t)})")
    if not parts:
        return "no set of two steps or more in which returns differ"
    return f"return {t['return']:.4g}: " + " + ".join(parts)


def _say_proxmo(estimator: ProxMO, t: dict[str, Any]) -> str:
    kind = "success" if t["counts as success"] else "failure"
    words = f"W {t['modulation W']:.3g} ({kind} at p {t['success rate p']:.3g}) x {t['episode term']:+.3g}: "
    words += f"{_say_episode(estimator, t)}; {estimator.w:g} x {t['step term']:+.3g}: "
    what = {"soft": "nearby states", "exact": "the same state", "none": "nothing"}[estimator.aggregation]
    return words + f"return {t['return']:.4g} against {what}"


def _say_progpo(estimator: ProGPO, t: dict[str, Any]) -> str:
    base = f"base {t['base advantage']:+.3g} ({because(estimator.base, t)})"
    if t["fallback"] == 0:
        return base
    mean, sd = t["progress mean"], t["progress sd"]
    return f"{base}; fallback {t['fallback']:+.3g}: progress {t['progress']:.3g}, mean {mean:.3g} (sd {sd:.3g})"


_WORDS = {
    GRPO: _say_episode,
    TRLGRPO: _say_episode,
    GiGPO: _say_gigpo,
    HGPO: _say_hgpo,
    ProxMO: _say_proxmo,
    ProGPO: _say_progpo,
}
