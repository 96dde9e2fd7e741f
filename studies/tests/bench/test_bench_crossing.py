"""Crossing points and "when to use what", on made-up times."""

from dataclasses import replace

import pytest
from bench_cases import MACHINE, PLAN, made_up

from tailsum_studies.bench.crossing import Pair, crossing, crossings
from tailsum_studies.bench.rows import BOTH, FORWARD, SKIPPED, TOGETHER, Sizes
from tailsum_studies.bench.when import advice, when_markdown


def test_powers_cross_where_they_should():
    # N^2 / 4000 against N^0.5: N^1.5 = 4000.
    pairs = [Pair(n, n**2 / 4000, n**0.5) for n in (100, 1000, 10_000)]
    found = crossing(pairs)
    assert found.at == pytest.approx(4000 ** (2 / 3))
    assert found.said("N") == "from N = 250 on"
    assert crossing(pairs[::-1]) == found


def test_a_sketch_that_becomes_slower():
    assert crossing([Pair(1, 1.0, 0.1), Pair(100, 1.0, 10.0)]).said("B") == "up to B = 10"


def test_the_last_change_counts():
    pairs = [Pair(1, 1.0, 0.5), Pair(10, 1.0, 2.0), Pair(1000, 1.0, 0.5)]
    assert crossing(pairs).at == pytest.approx(100)


@pytest.mark.parametrize(("slower", "said"), [(2.0, "nowhere at N = 10 to 100"), (0.5, "at all of N = 10 to 100")])
def test_no_change(slower, said):
    found = crossing([Pair(10, 1.0, slower), Pair(100, 1.0, slower)])
    assert found.at is None
    assert found.said("N") == said
    assert crossing([]) is None


def test_predicted_times_are_named():
    pairs = [Pair(10, 1.0, 2.0), Pair(1000, 4.0, 2.0, predicted=True), Pair(10_000, 9.0, 2.0, predicted=True)]
    assert crossing(pairs).said("N") == "from N = about 100 on"


def test_crossings_of_a_run(tmp_path):
    # N^2 = 10 N B: at N = 10 B.
    found = {(one.batch, one.label): at for one, at in crossings(made_up(tmp_path / "r.csv"), PLAN, "N")}
    assert found[8, "10%"].said("N") == "at all of N = 100 to 100,000"
    assert found[8, "100"].said("N") == "at all of N = 1,000 to 100,000"
    assert set(found) == {(batch, label) for batch in (1, 8) for label in ("100", "10%")}
    ((one, over_batch),) = crossings(made_up(tmp_path / "r.csv"), PLAN, "B")
    assert (one.label, over_batch.faster, over_batch.at) == ("100", True, None)  # 10^6 against 10^4 B, B up to 16


def test_advice_by_states_and_batch(tmp_path):
    results = made_up(tmp_path / "r.csv")
    assert str(advice(results, PLAN, 100, 1)) == "sketch, K = 10: 10 x faster"
    assert str(advice(results, PLAN, 100, 8)) == "sketch, K = 10: 1.2 x faster"
    assert str(advice(results, PLAN, 10_000, 8)) == "sketch, K = 100 to 1,000: 130 x faster"
    key = ("chain", "tailsum", Sizes(100, 20, 8, 10), TOGETHER)
    results.rows[key] = replace(results.rows[key], seconds=0.0095)  # 5% faster is not worth an error
    assert str(advice(results, PLAN, 100, 8)) == "exact"
    results.rows[key] = replace(results.rows[key], status=SKIPPED, seconds=5.0)
    assert str(advice(results, PLAN, 100, 8)) == "exact (predicted)"
    results.rows[key] = replace(results.rows[key], seconds=0.001)
    assert str(advice(results, PLAN, 100, 8)) == "not measured"
    del results.rows[key]
    assert str(advice(results, PLAN, 100, 8)) == "not measured"


def test_advice_says_where_the_exact_time_is_predicted(tmp_path):
    results = made_up(tmp_path / "r.csv")
    for what in (FORWARD, BOTH):
        key = ("chain", "tailsum", Sizes(100_000, 20, 1), what)
        results.rows[key] = replace(results.rows[key], status=SKIPPED)
    assert str(advice(results, PLAN, 100_000, 1)) == "sketch, K = 100 to 10,000: about 10,000 x faster"


def test_the_table_as_markdown(tmp_path):
    lines = when_markdown(made_up(tmp_path / "r.csv"), PLAN, MACHINE).splitlines()
    assert lines[:3] == [
        "| states | B = 1 | B = 8 |",
        "|--:|---|---|",
        "| N = 100 | sketch, K = 10: 10 x faster | sketch, K = 10: 1.2 x faster |",
    ]
    assert len(lines) == 2 + len(PLAN.states) + 2
    assert MACHINE["device"] in lines[-1]
    assert "T = 20" in lines[-1]
