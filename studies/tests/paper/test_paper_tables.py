"""The tables say what the rows say."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from paper_cases import directions, estimates, everything, pair

from tailsum_studies.paper.report.compare import headline, times_lower
from tailsum_studies.paper.report.summary import summaries
from tailsum_studies.paper.report.tables import sections
from tailsum_studies.paper.rows import Check
from tailsum_studies.report.wording import NOTHING

HERE = "Paper's method: here"
RATIO = "Paper's method here / ours"


def read(table):
    """As a reader sees it: the names of the rows are cells too."""
    frame = table.frame.reset_index()
    return SimpleNamespace(
        caption=table.caption,
        notes=table.notes,
        headers=tuple(frame),
        rows=tuple(frame.itertuples(index=False, name=None)),
        ours=[place for place, header in enumerate(frame) if header in table.ours],
    )


def only(name, rows):
    (section,) = sections(summaries({name: rows}))
    return [read(table) for table in section.tables]


def cell(table, header, row=0):
    return table.rows[row][table.headers.index(header)]


@pytest.mark.parametrize(
    ("paper", "ours", "text"),
    [
        (0.4, 1e-4, "4,000 x lower"),
        (1.26, 1.0, "1.3 x lower"),
        (1.0, 50.0, "50 x higher"),
        (1.0, 1.001, "equal"),
        (1.0, 0.0, "exact"),
        (0.0, 0.0, "both exact"),
        (0.0, 1.0, "higher: theirs is exact"),
        (math.inf, 1.0, "infinitely lower"),
        (1.0, math.inf, "infinitely higher"),
        (math.inf, math.inf, "undefined"),
        (math.nan, 1.0, "undefined"),
        (None, 1.0, NOTHING),
    ],
)
def test_comparisons(paper, ours, text):
    assert times_lower(paper, ours) == text


def test_table_2():
    rows = estimates("paper", [1.0, -0.5], exact=7.0) + estimates("tailsum", [0.001, -0.002], exact=7.0)
    (table,) = only("table2", rows)
    assert table.rows[0][:2] == ("dense", "1% (K = 20)")
    assert cell(table, "Paper's method: printed") == "0.146"
    assert cell(table, HERE) == "0.625 ± 0.38"
    assert cell(table, "Ours") == "2.50e-6 ± 1.5e-6"
    assert cell(table, RATIO) == "250,000 x lower"
    assert "TopK: here" not in table.headers


def test_table_2_says_how_many_states_topk_really_kept():
    rows = estimates("TopK", [-2.0], "20%", 400) + estimates("TopK", [-1.5], "K=500", 500)
    (table,) = only("table2", rows)
    assert [row[1] for row in table.rows] == ["20% (K = 400)", "K = 500 (printed as 20%)"]
    assert [cell(table, "TopK: printed", row) for row in (0, 1)] == ["3.874", "3.874"]
    assert [cell(table, "TopK: here", row) for row in (0, 1)] == ["4.00", "2.25"]
    assert "500 and 1,000" in " ".join(table.notes)


def test_table_2_shows_the_notebook_where_it_differs():
    (table,) = only("table2", pair(states=10_000, kept=100))
    assert cell(table, "Paper's method: printed") == "0.078 [0.748]"
    assert "notebook" in " ".join(table.notes)


def test_table_2_has_a_table_for_each_quantity_and_size():
    captions = [table.caption for table in only("table2", everything()["table2"])]
    assert captions == [
        "Chain log Z, N = 2,000: mean square error (nats²)",
        "Chain entropy, N = 2,000: mean square error (nats²)",
        "Hypertree log Z, N = 10,000: mean square error (nats²)",
    ]


def test_other_methods_have_columns_of_their_own():
    (table,) = only("table2", pair() + estimates("mine", [3.0]))
    assert cell(table, "Mine") == "9.00"


def test_table_3():
    rows = estimates("paper", [1.0, 0.0]) + estimates("TopK", [-2.0])
    bias, variance = only("table3", rows + estimates("tailsum", [0.25]))
    assert cell(bias, "Paper's method: printed") == "-0.066"
    assert cell(bias, HERE) == "0.500 ± 0.50"
    assert cell(bias, "TopK: here") == "-2.00"
    assert cell(variance, "Paper's method: printed") == "0.141"
    assert cell(variance, HERE) == "0.250"
    assert cell(variance, "TopK: here") == "0"
    assert "Ours" not in variance.headers  # one draw says nothing of a variance


def test_table_4():
    rows = estimates("Uniform", [2.0]) + estimates("Lookahead", [0.1]) + estimates("tailsum", [0.2])
    (table,) = only("table4", rows + estimates("Uniform", [3.0], model="chain, long-tail"))
    assert dict(zip(table.headers, table.rows[0], strict=True)) == {
        "Proposal": "Uniform",
        "Dense: printed": "0.655",
        "Dense: here": "4.00",
        "Long-tail: printed": "0.16",
        "Long-tail: here": "9.00",
    }
    assert [row[0] for row in table.rows] == ["Uniform", "Lookahead", "ours"]
    assert cell(table, "Dense: printed", 1) == NOTHING


@pytest.mark.parametrize("name", ["hard", "text"])
def test_suites_show_roots_and_seconds(name):
    topk = estimates("TopK", [-3.0, 3.0, -3.0], model="s=3 e=1")
    rows = pair(model="s=3 e=1") + [replace(row, seconds=s) for row, s in zip(topk, (9.0, 0.125, 0.1), strict=True)]
    (table,) = only(name, rows)
    assert table.rows[0] == ("s=3 e=1", "1% (K = 20)", "3.00", "0.632", "0.0100", "63 x lower", "0.12", "0.50", "0.50")


def test_gradients():
    rows = directions("paper", [0.8, 0.6]) + directions("tailsum", [0.9997])
    rows += directions("paper", [0.5], parameter="states") + directions("tailsum", [1.0], parameter="states")
    (table,) = only("gradients", rows)
    ratio = "1 - cosine: paper's method here / ours"
    assert table.rows[0][:2] == ("1% (K = 20)", "all")
    assert cell(table, "1 - cosine: paper's method") == "0.300"
    assert cell(table, "1 - cosine: ours") == "0.000300"
    assert cell(table, ratio) == "1,000 x lower"
    assert cell(table, "Relative error: ours") == "0.250"
    assert cell(table, "1 - cosine: ours", 1) == "0"
    assert cell(table, ratio, 1) == NOTHING


def test_theory():
    checks = [
        Check("unbiased", "chain", 2.0, 1.0, 1.025, 0.01),
        Check("unbiased", "all kept", 2.0, 1.0, 1.0, 0.0),
        Check("unbiased", "broken", 2.0, 1.0, math.nan, 0.1),
    ]
    (table,) = only("theory", checks)
    assert [cell(table, "z", row) for row in range(3)] == ["+2.50", "exact", "undefined"]
    assert table.rows[0] == ("unbiased", "chain", "2", "1.0000", "1.0250", "0.010", "+2.50")


def test_methods_share_a_row_only_with_as_many_states():
    """Under one label the paper's hypertrees keep 400 states and TopK 2,000."""
    how = {"model": "hypertree, dense", "label": "20%", "states": 10_000}
    (table,) = only("table2", estimates("TopK", [-2.0], kept=2000, **how) + pair(kept=400, **how))
    assert [row[:6] for row in table.rows] == [
        ("dense", "20% (K = 400)", NOTHING, NOTHING, "0.148", "0.400"),
        ("dense", "20% (K = 2,000)", "78.632", "4.00", NOTHING, NOTHING),
    ]


def test_variants_of_ours_stand_beside_it():
    rows = directions("paper", [0.0]) + directions("tailsum", [0.5]) + directions("tailsum, refined", [0.75])
    (table,) = only("gradients", rows)
    assert cell(table, "1 - cosine: ours, refined") == "0.250"
    assert cell(table, "1 - cosine: paper's method here / ours, refined") == "4 x lower"
    assert [table.headers[place] for place in table.ours] == [
        "1 - cosine: ours",
        "1 - cosine: ours, refined",
        "Relative error: ours",
        "Relative error: ours, refined",
    ]
    summary = headline(summaries({"gradients": rows}))
    assert summary is not None
    assert [row[0] for row in read(summary).rows] == [
        "Gradient of log Z (1 - cosine)",
        "Gradient of log Z, refined (1 - cosine)",
    ]


def test_rounding_makes_no_cosine_larger_than_one():
    (table,) = only("gradients", directions("paper", [0.5]) + directions("tailsum", [1 + 1e-15]))
    assert cell(table, "1 - cosine: ours") == "0"
    assert cell(table, "1 - cosine: paper's method here / ours") == "exact"


def test_table_4_leaves_out_what_has_no_proposals():
    tables = only("table4", estimates("Local", [1.0]) + estimates("tailsum", [1.0], quantity="entropy"))
    assert [table.caption[:11] for table in tables] == ["Chain log Z"]


def test_the_headline_is_the_smallest_and_the_median_ratio():
    rows = pair()  # 4,000
    rows += estimates("paper", [1.0], model="chain, intermediate") + estimates(
        "tailsum", [0.1], model="chain, intermediate"
    )
    rows += estimates("paper", [1.0], model="chain, long-tail") + estimates("tailsum", [0.0], model="chain, long-tail")
    rows += estimates("paper", [math.nan], states=10_000) + estimates("tailsum", [0.1], states=10_000)
    rows += pair(label="20%", kept=400)
    rows += pair(model="hypertree, dense", label="K=200", kept=200, states=10_000)
    table = headline(summaries({"table2": rows}))
    assert table is not None
    assert read(table).rows == (
        ("Chain log Z (mean square)", "1%", "3", "100 x lower", "4,000 x lower"),
        ("Hypertree log Z (mean square)", "10%", "1", "4,000 x lower", "4,000 x lower"),
    )
    assert headline(summaries({"table2": estimates("paper", [1.0])})) is None
