"""The page of a WebShop session in parts, for people: what to show as a search box, as a row and as a button."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from progpo_trl.environments.webshop import pages
from progpo_trl.environments.webshop.session import END, ITEM, RESULTS, START, SUB, Session


class Button(NamedTuple):
    """Something to click. action: what clicking it plays; chosen: an option's value that is set."""

    label: str
    action: str
    chosen: bool = False


class Result(NamedTuple):
    """A row of a page of results."""

    asin: str
    title: str
    price: str
    action: str


@dataclass(frozen=True)
class ShopPage:
    """One page. kind: start, results, item, sub or end, as `Session.page`.

    navigation: buttons of the page's head; results: its rows, from rank `first` on, on page `number` of `pages`, of
    `total` for `query`; title, price, options (name -> values), details (the sub-pages) and buy: of a product's page;
    heading, paragraphs: of a sub-page; bought: what was bought, as (name, value) pairs.
    """

    kind: str
    navigation: tuple[Button, ...] = ()
    query: str = ""
    first: int = 0
    number: int = 0
    pages: int = 0
    total: int = 0
    results: tuple[Result, ...] = ()
    title: str = ""
    price: str = ""
    options: dict[str, tuple[Button, ...]] = field(default_factory=dict)
    details: tuple[Button, ...] = ()
    buy: Button | None = None
    heading: str = ""
    paragraphs: tuple[str, ...] = ()
    bought: tuple[tuple[str, str], ...] = ()


def shop_page(session: Session) -> ShopPage:
    """The page `session` is on. Its buttons are the click actions that the environment lists, no more and no fewer."""
    return _MAKE[session.page](session)


def _button(label: str) -> Button:
    return Button(label, f"click[{label.lower()}]")


_BACK, _PREVIOUS, _NEXT = (_button(label) for label in (pages.BACK, pages.PREVIOUS, pages.NEXT))
_DETAILS = tuple(_button(name) for name in pages.SUB_PAGES.values())
_BUY = _button(pages.BUY)


def _start(session: Session) -> ShopPage:
    return ShopPage(START)


def _results(session: Session) -> ShopPage:
    catalogue, found = session.catalogue, session.catalogue.search(session.query)
    first = (session.number - 1) * pages.RESULTS_PER_PAGE
    rows = []
    for position in found[first : first + pages.RESULTS_PER_PAGE]:
        product = catalogue.product(position)
        action = f"click[{catalogue.row(position).clickable}]"
        rows.append(Result(product.asin, product.title, product.price_tag, action))
    return ShopPage(
        RESULTS,
        navigation=(_BACK, *([_PREVIOUS] if session.number > 1 else []), _NEXT),
        query=session.query,
        first=first + 1,
        number=session.number,
        pages=pages.last_page(len(found)),
        total=len(found),
        results=tuple(rows),
    )


def _item(session: Session) -> ShopPage:
    product = session.catalogue.product(session.position)
    options = {
        name: tuple(Button(v, f"click[{v}]", session.options.get(name) == v) for v in dict.fromkeys(values))
        for name, values in product.options.items()
    }
    return ShopPage(
        ITEM,
        navigation=(_BACK, _PREVIOUS),
        title=product.title,
        price=product.price_tag,
        options=options,
        details=_DETAILS,
        buy=_BUY,
    )


def _sub(session: Session) -> ShopPage:
    product = session.catalogue.product(session.position)
    text = session.catalogue.pages(session.position).sub[session.sub]
    # The page begins with its two buttons; what follows is its text.
    paragraphs = text.split(pages.SEPARATOR)[2:]
    return ShopPage(
        SUB,
        navigation=(_BACK, _PREVIOUS),
        title=product.title,
        heading=session.sub,
        paragraphs=tuple(paragraphs),
    )


def _end(session: Session) -> ShopPage:
    product = session.catalogue.product(session.position)
    return ShopPage(END, title=product.title, price=product.price_tag, bought=tuple(session.options.items()))


_MAKE = {START: _start, RESULTS: _results, ITEM: _item, SUB: _sub, END: _end}
