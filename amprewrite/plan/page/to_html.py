"""Method of a plan that writes its page."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amprewrite.page.histograms import Exponents
    from amprewrite.plan.model import Plan


class HtmlPage:
    """Base of :class:`amprewrite.Plan` with its HTML page."""

    __slots__ = ()

    def to_html(
        self,
        path: str | Path,
        *,
        against: "Plan | None" = None,
        exponents: "Iterable[Exponents]" = (),
        title: str = "",
    ) -> None:
        """Write one HTML page to ``path``: summary, graph with casts, tables.

        The page loads nothing and needs no server; it holds the libraries that draw it.

        Args:
            path: The file; one that exists is replaced.
            against: Another plan for the same model, to be compared with this one.
            exponents: Histograms of exponents of weights, activations and gradients, to
                be drawn with the ranges of the formats.
            title: Title of the page; by default it names the policy.

        Raises:
            ArgumentError: The file cannot be written.
            PlanMismatchError: The plan's program, from an edited file, cannot be read.
        """
        from amprewrite.page.write import write_page  # noqa: PLC0415  # only if used
        from amprewrite.plan.model import Plan  # noqa: PLC0415  # it is the subclass
        from amprewrite.plan.page.build import plan_page  # noqa: PLC0415  # only if used

        assert isinstance(self, Plan), "only a plan has a page"
        page = plan_page(self, title=title, against=against, exponents=exponents)
        write_page(page, path)
