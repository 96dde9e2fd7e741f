"""Small runs that many tests compare with, each trained once."""

import pytest
from vae_cases import LONG, text, trained


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def whole(tmp_path_factory, data):
    """A short run that nothing has happened to. Not to be changed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(folder, data)
    return folder


@pytest.fixture(scope="session")
def long(tmp_path_factory, data):
    """A run that is long enough to be caught in the middle. Not to be changed."""
    folder = tmp_path_factory.mktemp("long") / "run"
    trained(folder, data, **LONG)
    return folder


@pytest.fixture
def quick(unchecked, one_thread):
    """Checks of all types take most of the time. Processes of their own, and the runs above, have other settings."""
