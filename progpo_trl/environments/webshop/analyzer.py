"""Text to search terms, as Lucene's EnglishAnalyzer does it for the original search.

Words by Unicode's rules (UAX #29, with Lucene's choice of which pieces count as words), the possessive 's off, lower
case, 33 stop words out, then the stem (`stemmer.py`). A ":" or "." between two letters joins them into one word, as
the original does: "color:red" is one term.
"""

from __future__ import annotations

import re
from functools import lru_cache

import regex

from progpo_trl.environments.webshop.stemmer import stem

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)

# Longer words are cut, as by Lucene's tokenizer. (There the cut is made while reading, so that a cut at a joining
# sign may fall one letter earlier.)
MAX_WORD = 255

# Extended_Pictographic of Unicode 12.1, which Lucene 9 has in its tables: an emoji is a word. Later versions of
# Unicode took signs like U+2605, a star, out again, so the property of today's `regex` would not do.
_PICTOGRAPHS = """
a9 ae 203c 2049 2122 2139 2194-2199 21a9 21aa 231a 231b 2328 2388 23cf 23e9-23f3 23f8-23fa 24c2 25aa 25ab 25b6 25c0
25fb-25fe 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271d 2721 2728 2733 2734 2744 2747 274c 274e
2753-2755 2757 2763-2767 2795-2797 27a1 27b0 27bf 2934 2935 2b05-2b07 2b1b 2b1c 2b50 2b55 3030 303d 3297 3299
1f000-1f0ff 1f10d-1f10f 1f12f 1f16c-1f171 1f17e 1f17f 1f18e 1f191-1f19a 1f1ad-1f1e5 1f201-1f20f 1f21a 1f22f
1f232-1f23a 1f249-1f3fa 1f400-1f53d 1f546-1f64f 1f680-1f6ff 1f774-1f77f 1f7d5-1f7ff 1f90c-1f93a 1f93c-1f945
1f947-1fffd
"""


def _word_pattern() -> str:
    """The rules as one regular expression over Unicode's Word_Break classes."""
    tail = r"[\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}]*+"  # marks belong to the letter before them

    def sign(members: str) -> str:
        return f"(?:[{members}]{tail})"

    letter = sign(r"\p{WB=ALetter}\p{WB=Hebrew_Letter}")
    hebrew = sign(r"\p{WB=Hebrew_Letter}")
    digit = sign(r"\p{WB=Numeric}\uff10-\uff19")
    katakana = sign(r"\p{WB=Katakana}")
    between_letters = sign(r"\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}")
    between_digits = sign(r"\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}")
    underscore = sign(r"\p{WB=ExtendNumLet}")
    single, double = sign(r"\p{WB=Single_Quote}"), sign(r"\p{WB=Double_Quote}")
    run = (
        f"(?:{katakana}(?:{underscore}*{katakana})*"
        f"|(?:{hebrew}(?:{double}{hebrew}|{single})"
        f"|{digit}(?:(?:{underscore}*|{between_digits}){digit})*"
        f"|{letter}(?:(?:{underscore}*|{between_letters}){letter})*)+)"
    )
    # A word takes all underscores before it: beginning between them would try every one, in quadratic time.
    first = r"(?<![\p{WB=ExtendNumLet}][\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}]*)"
    word = f"{first}{underscore}*+{run}(?:{underscore}+{run})*{underscore}*"
    spans = [[f"\\U{int(end, 16):08x}" for end in span.split("-")] for span in _PICTOGRAPHS.split()]
    pictograph = "".join("-".join(span) for span in spans)
    one_emoji = rf"[{pictograph}][\U0001f3fb-\U0001f3ff]?\ufe0f?"
    emoji = rf"{one_emoji}(?:\u200d{one_emoji})*"
    single_signs = rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{tail}"  # no spaces between words: one sign, one word
    return rf"{word}|{emoji}|\p{{LB=Complex_Context}}+|{single_signs}"


_WORD = regex.compile(_word_pattern(), regex.V1)
# The same rules for ASCII text, which nearly all text is: three times as fast.
_ASCII_WORD = re.compile(r"(?<!_)_*[^\W_](?:\w|(?<=[a-zA-Z])[:.'](?=[a-zA-Z])|(?<=[0-9])[.,;'](?=[0-9]))*", re.ASCII)

_POSSESSIVE = ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")


def words(text: str) -> list[str]:
    """The words of `text` as written, before anything is done to them."""
    found = (_ASCII_WORD if text.isascii() else _WORD).findall(text)
    if len(text) > MAX_WORD and any(len(word) > MAX_WORD for word in found):
        found = [word[i : i + MAX_WORD] for word in found for i in range(0, len(word), MAX_WORD)]
    return found


def terms(text: str) -> list[str]:
    """What `text` is searched and found by: one term a word in the order of the text, stop words left out."""
    return [term for word in words(text) if (term := _term(word))]


@lru_cache(maxsize=1 << 16)
def _term(word: str) -> str:
    """The term of one word, "" for a stop word."""
    if word.endswith(_POSSESSIVE):
        word = word[:-2]
    word = _lower(word)
    return "" if word in STOP_WORDS else stem(word)


def _lower(word: str) -> str:
    """Sign by sign as Java does: no final sigma, and never two signs for one."""
    if word.isascii():
        return word.lower()
    return "".join(sign.lower()[0] for sign in word)
