"""The colour words of the reward: two option values that hold the same word count as the same colour.

The words and their order are a fact about the benchmark, needed to reproduce its scores. They are what WebShop
(princeton-nlp/WebShop, MIT licence, copyright 2023 Princeton Natural Language Processing) normalises colours with.
"""

from __future__ import annotations

COLOURS = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
    camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
    crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
    indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
    multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
    rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
    violet walnut wheat white wine yellow
    """.split()
)


def colour_in(text: str) -> str:
    """The first of the colour words that occurs in `text`, in the order of the list; without one, `text` itself."""
    return next((colour for colour in COLOURS if colour in text), text)
