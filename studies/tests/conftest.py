"""Text that several tests read."""

import pytest

from tailsum_studies.text import Split, sentences


@pytest.fixture(scope="session")
def prose() -> Split:
    """The standard library's, which takes seconds to read. Not to be changed."""
    return sentences()
