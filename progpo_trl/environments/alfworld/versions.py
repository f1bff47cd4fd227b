"""Which text version a game file is of, told by its own domain and grammar.

Both are compared as a whole, by fingerprint: our engine has the rules and the sentences built in, so a file that
changes even one of them would be played wrongly without anyone noticing. What may differ: comments, blank lines,
indentation, and the task sentence.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache

# SHA-256 of the normalised texts of the official files -> version.
_DOMAINS = {
    "dfca3055fe90ab94dbbf4da2b48578c30ed66e0314e169305fdc05c205d98819": "0.2.2",
    "312f9152fc5bfdd0143c9a99a771192c6d97fa2cb8f6e1f7a5b015fbab13859d": "0.4",
}
_GRAMMARS = {
    "142f051a67d5284ddeeeb2655d9c7652c233e5ec8f48c41f6db1267762be0a5c": "0.2.2",
    "b9f6183316c9bd68eb3680325bb81ab3e4066c4fdfe6b76f89a2d4a39d3f1593": "0.4",
}
_EXPECTED = "expected the domain and grammar of ALFWorld 0.2.2 or of ALFWorld 0.4, unchanged but for the task sentence"
_TASK = re.compile(r'("rhs":\s*)"Your task is to: ((?:[^"\\]|\\.)*)"')


def read_version(domain: str, grammar: str) -> tuple[str, str]:
    """(version, task sentence) of a game file's `pddl_domain` and `grammar`. ValueError says which of them is unknown.

    The task sentence comes without "Your task is to: ".
    """
    tasks = _TASK.findall(grammar)
    if len(tasks) != 1:
        raise ValueError(f'its grammar has {len(tasks)} sentences "Your task is to: ..."; exactly one is expected')
    of_domain = _DOMAINS.get(_domain_fingerprint(domain))
    of_grammar = _GRAMMARS.get(_fingerprint(_TASK.sub(r"\1task", grammar)))
    if of_domain is None or of_grammar is None:
        which = " and ".join(n for n, v in (("pddl_domain", of_domain), ("grammar", of_grammar)) if v is None)
        raise ValueError(f"its {which} {'is' if of_domain or of_grammar else 'are'} of no known version; {_EXPECTED}")
    if of_domain != of_grammar:
        raise ValueError(f"its pddl_domain is that of {of_domain}, its grammar that of {of_grammar}; {_EXPECTED}")
    return of_domain, json.loads(f'"{tasks[0][1]}"')


@lru_cache(maxsize=64)
def _domain_fingerprint(domain: str) -> str:
    """Cached: all games of a release share the domain's text."""
    return _fingerprint(re.sub(r";[^\n]*", "", domain))


def _fingerprint(text: str) -> str:
    lines = (line.strip() for line in text.split("\n"))
    return hashlib.sha256("\n".join(line for line in lines if line).encode("utf-8", "surrogatepass")).hexdigest()
