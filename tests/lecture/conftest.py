"""Pages of the lecture in a real browser, as tests/page/conftest.py opens others."""

from tests.page.conftest import browser, opened

__all__ = ["browser", "opened"]
