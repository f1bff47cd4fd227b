"""`Session`: where one shopper is. A few small fields; all that is large is the catalogue's, which sessions share."""

from __future__ import annotations

from progpo_trl.environments.webshop import pages
from progpo_trl.environments.webshop.catalogue import Catalogue
from progpo_trl.environments.webshop.pages import ResultRow
from progpo_trl.environments.webshop.reward import Reward, score_purchase

START, RESULTS, ITEM, SUB, END = "start", "results", "item", "sub", "end"
BACK, PREVIOUS, NEXT, BUY = (text.lower() for text in (pages.BACK, pages.PREVIOUS, pages.NEXT, pages.BUY))


def parse_action(action: str) -> tuple[str, str]:
    """("click", "Buy Now") of "click[Buy Now]"; ("", "") when it is not of that form.

    As the original's expression `(.+)\\[(.+)\\]`, greedy and matched at the start: what follows the last bracket is
    ignored, and the argument begins at the last opening bracket that leaves it a character.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(1, end - 1))
    return (line[:start], line[start + 1 : end]) if start > 0 else ("", "")


class Session:
    """One visit to the shop, as the original's text mode plays it.

    goal: index of the goal asked for; strict: choices with the same value are told apart and the end is final (in the
    original a search goes on after it); page: START, RESULTS, ITEM, SUB or END; query, number: of the results shown;
    position: of the product shown; options: name -> value chosen for it; sub: "Description", "Features" or "Reviews";
    reward: of the last purchase, None before.
    """

    __slots__ = (
        "catalogue",
        "goal",
        "header",
        "page",
        "query",
        "number",
        "position",
        "options",
        "sub",
        "reward",
        "strict",
    )

    def __init__(self, catalogue: Catalogue, goal: int, *, strict: bool = False):
        self.catalogue, self.goal, self.strict = catalogue, goal, strict
        self.header = pages.header(catalogue.goals[goal].instruction)
        self.page, self.query, self.number, self.position, self.sub = START, "", 0, -1, ""
        self.options: dict[str, str] = {}
        self.reward: Reward | None = None

    def observation(self) -> str:
        """The text of the page."""
        if self.page == START:
            return pages.start_page(self.header)
        if self.page == RESULTS:
            total = len(self.catalogue.search(self.query))
            return pages.results_page(self.header, self.number, total, self._rows())
        if self.page == END:
            asin = self.catalogue.product(self.position).asin
            return pages.end_page(asin, self.options, self.reward.score)
        product = self.catalogue.pages(self.position)
        return self.header + (product.item if self.page == ITEM else product.sub[self.sub])

    @property
    def has_search_bar(self) -> bool:
        """Whether the page shows a search bar. (Searching works on every page; only this one says so.)"""
        return self.page == START

    def clickables(self) -> tuple[str, ...]:
        """What the page lists as clickable, in its order. ("search" is listed, but clicking it does nothing.)"""
        if self.page == START:
            return (pages.SEARCH.lower(),)
        if self.page == RESULTS:
            return pages.results_clickables(self.number, self._rows())
        if self.page == ITEM:
            return self.catalogue.pages(self.position).clickables
        return (BACK, PREVIOUS) if self.page == SUB else ()

    def step(self, action: str) -> Reward | None:
        """Play an action; anything that cannot be done here changes nothing. Returns the reward of a purchase."""
        name, argument = parse_action(action)
        argument = argument.lower()
        if self.strict and self.page == END:
            return None
        if name == "search" and argument:
            self.page, self.query, self.number = RESULTS, argument, 1
            self._leave_product()
        elif name == "click":
            if argument == BACK and self.page in (RESULTS, ITEM, SUB):
                self.page, self.query, self.number = START, "", 0
                self._leave_product()
            elif self.page == RESULTS:
                self._click_results(argument)
            elif self.page == ITEM:
                return self._click_item(argument)
            elif self.page == SUB and argument == PREVIOUS:
                self.page = ITEM
        return None

    def _click_results(self, argument: str) -> None:
        if argument == NEXT:
            self.number = min(self.number + 1, pages.last_page(len(self.catalogue.search(self.query))))
        elif argument == PREVIOUS:
            self.number = max(self.number - 1, 1)
        else:
            for position, row in zip(self._shown(), self._rows(), strict=True):
                if row.clickable == argument:
                    self.page, self.position = ITEM, position
                    return

    def _click_item(self, argument: str) -> Reward | None:
        if argument == BUY:
            goal = self.catalogue.goals[self.goal]
            product, price = self.catalogue.product(self.position), self.catalogue.price(self.position)
            self.reward = score_purchase(product, price, self.options, goal, strict=self.strict)
            self.page = END
            return self.reward
        if argument == PREVIOUS:
            self.page = RESULTS
            self._leave_product()
        elif argument in pages.SUB_PAGES:
            self.page, self.sub = SUB, pages.SUB_PAGES[argument]
        elif names := self.catalogue.pages(self.position).options.get(argument):
            # In the original the last option with this value takes the click, and the others cannot have it.
            free = [name for name in names if name not in self.options] if self.strict else []
            self.options[free[0] if free else names[-1]] = argument
        return None

    def _leave_product(self) -> None:
        self.position, self.sub, self.options = -1, "", {}

    def _shown(self) -> tuple[int, ...]:
        first = (self.number - 1) * pages.RESULTS_PER_PAGE
        return self.catalogue.search(self.query)[first : first + pages.RESULTS_PER_PAGE]

    def _rows(self) -> list[ResultRow]:
        return [self.catalogue.row(position) for position in self._shown()]
