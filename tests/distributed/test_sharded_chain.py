"""Sharded chains on two and four ranks: `sharded_cases.py` has the checks, which each group of ranks runs once."""

import functools

import pytest
from sharded_cases import CHECKS, run


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    return functools.cache(lambda world: run(world, tmp_path_factory.mktemp(f"ranks{world}")))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", [c.__name__ for c in CHECKS])
def test_ranks_agree_with_one(groups, world, name):
    for rank, error in enumerate(groups(world)[name]):
        assert not error, f"rank {rank}: {error}"
