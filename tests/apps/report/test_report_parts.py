"""Numbers and tables as Markdown and as HTML: whatever text they hold."""

import math

import pandas as pd
import pytest

from harness.outline import Outline
from tailsum.apps.report.page import TEMPLATES
from tailsum.apps.report.table import Section, Table
from tailsum.apps.report.wording import NOTHING, number


def table_of(names, *rows, columns):
    return pd.DataFrame(rows, columns=[*names, *columns]).set_index(names)


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


def test_columns_that_say_nothing_are_left_out():
    frame = table_of(["name"], ("1", NOTHING, "x"), ("2", None, "x"), columns=["empty", "full"])
    table = Table.filled("key", "caption", frame)
    assert (list(table.frame), table.rows()) == (["full"], [(("1",), ("x",)), (("2",), ("x",))])
    assert table.frame.index.names == ["name"]


def test_markdown_escapes():
    table = Table("key", "a|b", table_of(["x"], ("<b>", "1|2\n3"), columns=["y"]), notes=("*note*",))
    text = TEMPLATES.get_template("section.md").render(section=Section("key", "Title", "Words.", [table]))
    assert (
        text.removeprefix("# Title\n\nWords.\n\n")
        == "**a\\|b**\n\n| x | y |\n| :-- | --: |\n| \\<b\\> | 1\\|2 3 |\n\n\\*note\\*\n"
    )


def test_html_escapes_and_spans_groups():
    rows = (("<b>", "1", "x & y"), ("<b>", "2", "z"), ("c", "1", "w"))
    table = Table("key", '"quoted" <i>', table_of(["g", "k"], *rows, columns=["<v>"]), ours=["<v>"])
    text = TEMPLATES.get_template("parts.html").module.table(table)
    page = Outline(text)
    assert {"<b>", "x & y", "<v>", '"quoted" <i>'} <= set(page.words)
    assert not {"b", "i", "v"} & {tag for tag, _ in page.tags}
    spans = [attributes["rowspan"] for tag, attributes in page.tags if attributes.get("scope") == "rowgroup"]
    assert spans == ["2", "1"]
    assert text.count("<tbody>") == 2
    assert text.count('class="ours"') == 4
