"""Scripts of the pages in a browser."""

import pytest

from dear_mpi.contrib.pages.whole import sources


@pytest.fixture
def scripts(browser):
    """An empty page in which functions of these sources can be called."""
    context = browser.new_context()

    def load(*names):
        page = context.new_page()
        page.add_script_tag(content=sources(*names))
        return page

    yield load
    context.close()
