"""What the generated shop sells: the tables behind `generate.py`, all of our own invention."""

from __future__ import annotations

from dataclasses import dataclass

COLORS = "black white navy crimson olive teal ivory amber charcoal lilac coral sand".split()


@dataclass(frozen=True)
class Department:
    """One of the five categories of the original's data.

    path: the first part of `product_category`; kinds: what it sells, (noun, search category, shelf); traits: what a
    product can be like; options: (name, values); scenes: where and when it is used; parts: what bullets talk about;
    prices: lowest and highest, in dollars.
    """

    path: str
    kinds: tuple[tuple[str, str, str], ...]
    traits: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    scenes: tuple[str, ...]
    parts: tuple[str, ...]
    prices: tuple[float, float]


def _list(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(","))


DEPARTMENTS: dict[str, Department] = {
    "fashion": Department(
        path="Clothing, Shoes & Jewelry",
        kinds=(
            ("parka", "parkas & coats", "Outerwear"),
            ("cardigan", "knit cardigans", "Knitwear"),
            ("loafer", "loafers & slip-ons", "Shoes"),
            ("skirt", "midi skirts", "Skirts"),
            ("pajama set", "pajama sets", "Sleepwear"),
            ("hiking boot", "hiking boots", "Shoes"),
        ),
        traits=_list(
            "machine washable, wide fit, ribbed cuffs, fleece lined, slip resistant, stretch waist, side pockets, "
            "cushioned insole, hooded collar, breathable mesh, wrinkle resistant, organic cotton, button closure, "
            "water repellent, tagless label, ankle support"
        ),
        options=(("color", tuple(COLORS)), ("size", _list("x-small, small, medium, large, x-large, xx-large"))),
        scenes=_list("the office, long walks, cool evenings, travel, weekends at home, the school run"),
        parts=_list("seam, lining, cut, sole, hem, zipper"),
        prices=(12, 180),
    ),
    "beauty": Department(
        path="Beauty & Personal Care",
        kinds=(
            ("face cream", "face creams", "Skin Care"),
            ("hair mask", "hair masks", "Hair Care"),
            ("lip tint", "lip tints", "Makeup"),
            ("bath salt", "bath salts", "Bath"),
            ("nail polish", "nail polishes", "Nails"),
            ("beard oil", "beard oils", "Shaving"),
        ),
        traits=_list(
            "cruelty free, paraben free, fragrance free, argan oil, vitamin c, dry scalp, oily skin, long wearing, "
            "plant derived, shea butter, fine lines, damaged hair, quick absorbing, aloe vera, alcohol free, "
            "dermatologist tested"
        ),
        options=(
            ("scent", _list("cedar, jasmine, grapefruit, unscented, lavender, honey")),
            ("size", _list("1 ounce, 3 ounce, 6 ounce, 12 ounce")),
        ),
        scenes=_list("the morning routine, sensitive days, the gym bag, gifts, winter, every skin type"),
        parts=_list("formula, bottle, texture, pump, finish, blend"),
        prices=(5, 70),
    ),
    "electronics": Department(
        path="Electronics",
        kinds=(
            ("earbud", "wireless earbuds", "Audio"),
            ("power bank", "power banks", "Phone Accessories"),
            ("desk microphone", "desk microphones", "Audio"),
            ("webcam", "webcams", "Computer Accessories"),
            ("tablet stand", "tablet stands", "Computer Accessories"),
            ("smart plug", "smart plugs", "Smart Home"),
        ),
        traits=_list(
            "noise reducing, fast charging, splash proof, braided cord, carrying pouch, plug and play, low latency, "
            "touch controls, usb c, foldable design, night vision, voice control, long battery, shock absorbing, "
            "energy saving, dual band"
        ),
        options=(("color", tuple(COLORS[:8])), ("length", _list("2 feet, 5 feet, 8 feet, 12 feet"))),
        scenes=_list("video calls, the commute, small desks, gaming, the workshop, holidays"),
        parts=_list("chip, case, cable, button, sensor, hinge"),
        prices=(9, 260),
    ),
    "garden": Department(
        path="Home & Kitchen",
        kinds=(
            ("armchair", "armchairs", "Living Room"),
            ("floor lamp", "floor lamps", "Lighting"),
            ("throw blanket", "throw blankets", "Bedding"),
            ("plant stand", "plant stands", "Patio"),
            ("storage basket", "storage baskets", "Storage"),
            ("side table", "side tables", "Living Room"),
        ),
        traits=_list(
            "solid oak, easy assembly, stain resistant, hand woven, dining room, fully padded, rust proof, "
            "space saving, non scratching, contemporary style, metal frame, tempered glass, removable cover, "
            "weather resistant, soft touch, adjustable height"
        ),
        options=(("color", tuple(COLORS)), ("size", _list("small, medium, large, set of 2"))),
        scenes=_list("the reading corner, narrow hallways, balconies, guests, a first flat, the home office"),
        parts=_list("frame, leg, fabric, joint, surface, handle"),
        prices=(15, 420),
    ),
    "grocery": Department(
        path="Grocery & Gourmet Food",
        kinds=(
            ("trail mix", "trail mixes", "Snacks"),
            ("rooibos tea", "rooibos teas", "Beverages"),
            ("oat bar", "oat bars", "Snacks"),
            ("hot sauce", "hot sauces", "Sauces"),
            ("cocoa powder", "cocoa powders", "Baking"),
            ("lentil soup", "lentil soups", "Pantry"),
        ),
        traits=_list(
            "gluten free, no added sugar, low sodium, dairy free, high fiber, kosher certified, fair trade, "
            "small batch, soy free, ready to eat, grain free, nut free, slow roasted, plant based, "
            "artificial flavors free, resealable bag"
        ),
        options=(
            ("flavor", _list("original, smoky, ginger, cherry, salted, lemon")),
            ("size", _list("pack of 1, pack of 2, pack of 4, pack of 8")),
        ),
        scenes=_list("breakfast, the lunch box, camping, busy days, the baking shelf, movie nights"),
        parts=_list("recipe, pack, crop, roast, lid, ingredient"),
        prices=(4, 60),
    ),
}

AUDIENCES = ("Women", "Men", "Kids", "Adults")
# Brands, places and lines of goods are made of these.
SYLLABLES = (
    "ba bel bri cal cor da del dor el fen fi gal gri ha hex in jo jun ka kel lo lu mar mi mon na nor ol pax per qui "
    "ra ril sol su tal tor ul vel vi wyn xan yor za zen"
).split()
STYLES = "Classic Urban Alpine Coastal Studio Heritage Minimal Nordic Vintage Everyday Signature Harvest".split()
ADVERBS = "carefully quietly simply evenly neatly gently firmly patiently".split()
QUALITIES = "sturdy handy reliable tidy pleasant balanced honest thoughtful durable light".split()

# Sentences of descriptions and bullets; what stands in braces is filled in by `generate.py`.
SENTENCES = (
    "The {quality} {part} was {adverb} tested in our {place} workshop for {scene}.",
    "Model {code} of the {line} line measures {a} x {b} inches and weighs {w} pounds.",
    "We made the {part} more {quality} so that it suits {scene} and {scene2}.",
    "Customers from {place} choose {maker} for {scene} because the {part} stays {quality}.",
    "Ask us about the {part} within {days} days and {maker} will answer {adverb}.",
    "Every {part} is checked {adverb}, then packed with a {quality} {part2} and a note from {place}.",
    "It ships from our house in {place} in {days} days, {adverb} wrapped.",
    "Goes well with the {line} {part2} and other things for {scene2}.",
)

# ---- the level `tiny` ----------------------------------------------------------------------------------------------

# Few words, each once: a policy of 0.14M parameters learns them all.
TINY_KINDS = {"home": ("mug", "lamp", "rug", "vase"), "wear": ("scarf", "hat", "coat", "sock")}
TINY_TRAITS = ("soft", "warm", "light", "round", "tall", "plain")
TINY_COLORS = ("red", "blue", "green")
TINY_PRICES = (5, 15, 25, 35)
