"""One self-contained HTML page of a conversion, from plain data.

Knows no plan and no report: they describe themselves by the types of
:mod:`amprewrite.page.model`. The libraries in ``assets/vendor`` are fetched by
``python -m tools.page_libraries``.
"""
