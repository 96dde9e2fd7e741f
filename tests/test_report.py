"""The report says what the rows say, and nothing else is needed to read it."""

import math
import re
from dataclasses import replace

import pytest

from outline import Outline
from tailsum.apps.paper import published
from tailsum.apps.paper.report import Results, headline, write_report
from tailsum.apps.paper.report.page import to_html
from tailsum.apps.paper.report.sections import sections
from tailsum.apps.paper.report.table import Column, Table, make_table, to_markdown
from tailsum.apps.paper.report.wording import NOTHING, number, times_lower
from tailsum.apps.paper.rows import Check, Direction, Estimate, write_rows

ABOUT = {"seed": "0", "repeats": "2", "machine": 'two <cores> & "more"', "date": "2026-01-01"}
HERE = "Paper's method: here"
RATIO = "Paper's method here / ours"


def estimates(method, errors, label="1%", kept=20, model="chain, dense", states=2000, quantity="log Z", exact=0.0):
    return [
        Estimate(model, states, quantity, method, label, kept, place, exact + error, exact, 0.5, 2**20)
        for place, error in enumerate(errors)
    ]


def pair(**how):
    """The paper's method with a mean square error of 0.4, ours with 1e-4."""
    root = math.sqrt(0.4)
    return estimates("paper", [root, -root], **how) + estimates("tailsum", [0.01, -0.01], **how)


def directions(method, cosines, **how):
    row = Direction("chain, dense", 2000, method, "1%", 20, 0, "log Z", "all", 0.0, 0.25)
    return [replace(row, replicate=place, cosine=cosine, **how) for place, cosine in enumerate(cosines)]


def everything():
    table2 = pair() + pair(model="hypertree, long-tail", label="K=20", states=10_000) + pair(quantity="entropy")
    table2 += estimates("TopK", [-1.5], label="K=500", kept=500)
    proposals = [row for name in ("Uniform", "Local+Global", "Lookahead") for row in estimates(name, [0.5, -0.1])]
    return Results(
        table2=table2,
        table3=pair() + estimates("TopK", [-1.5], label="20%", kept=400),
        table4=proposals,
        hard=pair(model="s=3 e=1"),
        text=pair(model="trained CRF", label="K=32", kept=32),
        gradients=directions("paper", [0.8, 0.6]) + directions("tailsum", [0.9997, 0.9997]),
        theory=[
            Check("unbiased", "chain", 2.0, 1.0, 1.02, 0.01),
            Check("1/K2", "chain", 1.0, 2.0, 2.5, 0.25),
            Check("1/K2", "chain", 2.0, 1.0, 0.9, 0.1),
        ],
    )


def only(name, rows):
    (section,) = sections(Results(**{name: rows}))
    return section.tables


def cell(table, header, row=0):
    return table.rows[row][table.headers.index(header)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_rows(folder / "table2.csv", everything().table2, Estimate)
    path = write_report(folder, everything(), ABOUT)
    return path, Outline(path.read_text(encoding="utf-8"))


# What the paper prints


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("chain, dense", "log Z", 2000, "TopK", "20%"), 3.874),
        (("chain, dense", "log Z", 2000, "TopK", "K=500"), 3.874),
        (("chain, long-tail", "entropy", 2000, "TopK", "K=1000"), 1.816),
        (("chain, intermediate", "log Z", 2000, "paper", "1%"), 0.066),
        (("hypertree, long-tail", "log Z", 2000, "paper", "1%"), 48.863),
        (("hypertree, dense", "log Z", 10_000, "paper", "K=200"), 0.299),
        (("hypertree, intermediate", "log Z", 10_000, "TopK", "50%"), 26.677),
        (("chain, intermediate", "entropy", 10_000, "paper", "10%"), 1.539),
        (("chain, long-tail", "entropy", 10_000, "paper", "20%"), 0.068),
        (("chain, dense", "log Z", 10_000, "paper", "K=500"), None),
        (("chain, dense", "log Z", 10_000, "tailsum", "1%"), None),
        (("chain, dense", "log Z", 5000, "paper", "1%"), None),
        (("hypertree, dense", "entropy", 2000, "paper", "1%"), None),
        (("trained CRF", "log Z", 2000, "paper", "1%"), None),
    ],
)
def test_mean_square_errors_of_the_paper(where, value):
    assert published.mse(*where) == value


def test_the_papers_table_3_agrees_with_its_table_2():
    for level in ("dense", "long-tail"):
        for method, label in (("TopK", "20%"), ("TopK", "50%"), ("paper", "1%"), ("paper", "10%"), ("paper", "20%")):
            where = f"chain, {level}", "log Z", 2000, method, label
            found = published.bias_variance(*where)
            assert found is not None
            assert found.bias**2 + found.variance == pytest.approx(published.mse(*where), abs=2e-3)
            assert published.bias_variance(where[0], "log Z", 10_000, method, label) is None
    assert published.bias_variance("chain, dense", "log Z", 2000, "paper", "1%") == (-0.066, 0.141)
    assert published.bias_variance("chain, intermediate", "log Z", 2000, "paper", "1%") is None


def test_proposals_and_notebook_of_the_paper():
    assert published.proposal_mse("chain, intermediate", "log Z", "Uniform") == 11.05
    assert published.proposal_mse("chain, long-tail", "log Z", "Local + Global") == 0.022
    assert published.proposal_mse("chain, dense", "log Z", "Lookahead") is None
    assert published.proposal_mse("chain, dense", "entropy", "Uniform") is None
    assert published.notebook_mse("chain, dense", "log Z", 10_000, "paper", "1%") == 0.748
    assert published.notebook_mse("chain, intermediate", "log Z", 10_000, "paper", "20%") == 0.447
    assert published.notebook_mse("chain, long-tail", "log Z", 10_000, "paper", "1%") is None


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.999, "10.0"),
        (0.99999, "1.00"),
        (0.0001234, "0.000123"),
        (1.234e-5, "1.23e-5"),
        (-12.345, "-12.3"),
        (4.2e12, "4.20e12"),
        (math.nan, "undefined"),
        (math.inf, "infinite"),
        (-math.inf, "minus infinite"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


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


# Tables


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
    captions = [table.caption for table in only("table2", everything().table2)]
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
    summary = headline(Results(gradients=rows))
    assert summary is not None
    assert [row[0] for row in summary.rows] == [
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
    table = headline(Results(table2=rows))
    assert table is not None
    assert table.rows == (
        ("Chain log Z (mean square)", "1%", "3", "100 x lower", "4,000 x lower"),
        ("Hypertree log Z (mean square)", "10%", "1", "4,000 x lower", "4,000 x lower"),
    )
    assert headline(Results(table2=estimates("paper", [1.0]))) is None


def test_columns_that_say_nothing_are_left_out():
    columns = [Column("name", str, names_lines=True), Column("empty", lambda _: NOTHING), Column("full", lambda _: "x")]
    table = make_table("key", "caption", columns, [1, 2])
    assert (table.headers, table.rows, table.names) == (("name", "full"), (("1", "x"), ("2", "x")), 1)


def test_markdown_escapes():
    table = Table("key", "a|b", ("x", "y"), (("<b>", "1|2\n3"),), notes=("*note*",))
    assert to_markdown(table) == "**a\\|b**\n\n| x | y |\n| :-- | --: |\n| \\<b\\> | 1\\|2 3 |\n\n\\*note\\*\n"


def test_html_escapes_and_spans_groups():
    rows = (("<b>", "1", "x & y"), ("<b>", "2", "z"), ("c", "1", "w"))
    text = to_html(Table("key", '"quoted" <i>', ("g", "k", "<v>"), rows, names=2, ours=(2,)))
    page = Outline(text)
    assert {"<b>", "x & y", "<v>", '"quoted" <i>'} <= set(page.words)
    assert not {"b", "i", "v"} & {tag for tag, _ in page.tags}
    spans = [attributes["rowspan"] for tag, attributes in page.tags if attributes.get("scope") == "rowgroup"]
    assert spans == ["2", "1"]
    assert text.count("<tbody>") == 2
    assert text.count('class="ours"') == 4


# The whole report


def test_the_page_needs_nothing_else(report):
    path, page = report
    assert not [tag for tag, _ in page.tags if tag in {"script", "link", "iframe", "object"}]
    assert "url(" not in path.read_text(encoding="utf-8")
    assert "@import" not in path.read_text(encoding="utf-8")
    for link in page.links:
        if link.startswith("#"):
            assert any(attributes.get("id") == link[1:] for _, attributes in page.tags)
        elif not link.startswith("data:image/png;base64,"):
            assert re.fullmatch(r"[a-z0-9]+\.(md|csv)", link)
            assert (path.parent / link).exists()


def test_the_page_is_accessible(report):
    _, page = report
    assert ("html", {"lang": "en-GB"}) in page.tags
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == tags.count("main") == tags.count("title") == 1
    assert tags.count("table") == tags.count("caption") > 10
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


def test_the_page_says_what_was_run(report):
    path, page = report
    assert 'two <cores> & "more"' in page.words
    assert "two <cores>" not in path.read_text(encoding="utf-8")
    assert "4,000 x lower" in page.words


def test_every_plot_is_on_the_page(report):
    path, page = report
    plots = sorted(file.name for file in (path.parent / "plots").iterdir())
    kinds = ("errors", "mse", "cost")
    table2 = ["chain-entropy-2000", "chain-log-z-2000", "hypertree-log-z-10000"]
    assert plots == sorted(
        [f"table2-{block}-{kind}.png" for block in table2 for kind in kinds]
        + [f"{block}-log-z-2000-{kind}.png" for block in ("hard", "text") for kind in kinds]
        + ["table4-chain-log-z-2000-1-errors.png", "gradients-chain-dense-2000.png"]
        + ["theory-agreement.png", "theory-law-in-k2.png"]
    )
    assert len([tag for tag, _ in page.tags if tag == "img"]) == len(plots)


def test_plots_carry_no_versions(report):
    path, _ = report
    for file in (path.parent / "plots").iterdir():
        assert not {b"tEXt", b"tIME", b"iTXt"} & set(re.findall(rb"tEXt|tIME|iTXt", file.read_bytes()))


def test_the_page_links_to_rows_and_tables_beside_it(report):
    path, page = report
    names = ["table2", "table3", "table4", "hard", "text", "gradients", "theory"]
    links = [link for link in page.links if link.endswith((".md", ".csv"))]
    assert links == ["table2.md", "table2.csv", *(f"{name}.md" for name in names[1:])]
    text = (path.parent / "theory.md").read_text(encoding="utf-8")
    assert "| unbiased | chain | 2 | 1.0000 | 1.0200 | 0.010 | +2.00 |" in text


@pytest.mark.parametrize("name", [None, "table3", "gradients", "theory"])
def test_any_subset(name, tmp_path):
    results = Results(**({name: getattr(everything(), name)} if name else {}))
    page = Outline(write_report(tmp_path / "new" / "folder", results, {}).read_text(encoding="utf-8"))
    found = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert [each for each in found if each != "summary"] == ([name] if name else [])
    assert (tmp_path / "new" / "folder" / "table2.md").exists() is False


def test_the_same_rows_give_the_same_bytes(tmp_path):
    results = Results(table2=pair(), theory=everything().theory)
    first, second = (write_report(tmp_path / name, results, ABOUT).parent for name in ("a", "b"))
    files = [file.relative_to(first) for file in first.rglob("*") if file.is_file()]
    assert len(files) == 8
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


@pytest.mark.parametrize("errors", [[0.0], [0.0, 0.0], [math.nan], [math.inf, 1.0], [-math.inf, math.nan]])
def test_exact_and_broken_estimates(errors, tmp_path):
    rows = [replace(row, seconds=0.0, peak_bytes=0) for row in estimates("tailsum", errors) + estimates("paper", [0.5])]
    checks = [Check("1/K2", "x", 1.0, error, error, error) for error in errors]
    path = write_report(tmp_path, Results(table2=rows, theory=checks), {})
    words = {0.0: "exact", math.inf: "infinitely higher"}.get(errors[0], "undefined")
    assert words in Outline(path.read_text(encoding="utf-8")).words


def test_text_that_looks_like_formulas_is_drawn_as_it_is(tmp_path):
    path = write_report(tmp_path, Results(hard=pair(model="named $^$")), {})
    assert "named $^$" in Outline(path.read_text(encoding="utf-8")).words
