"""The option that records golden files anew."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-goldens``."""
    parser.addoption(
        "--update-goldens", action="store_true", help="write golden files anew"
    )
