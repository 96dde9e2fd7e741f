"""Numbers and tables as Markdown and as HTML: whatever text they hold."""

import math

import pandas as pd
import pytest
from matplotlib.figure import Figure

from pages.outline import Outline
from tailsum_studies.report.axes import label_edges, legend_below, panels
from tailsum_studies.report.page import TEMPLATES
from tailsum_studies.report.picture import PHONE, WIDTH, Picture, is_narrow, page_width, save
from tailsum_studies.report.table import Section, Table
from tailsum_studies.report.wording import NOTHING, number


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


# Pictures.


def shot_of(draw, folder, **how):
    return save(Picture("name", "section", "caption", draw), folder, **how)


def two_panels():
    made = panels(["a", "b"], 2.0)
    label_edges(made, "x", "y")
    legend_below(made.figure, [made.axes[0].plot([1], [2], label=name)[0] for name in "abcd"])
    return made.figure


def test_pictures_are_drawn_for_wide_and_narrow_pages(tmp_path):
    shot = shot_of(two_panels, tmp_path, embed=False)
    assert (shot.wide.url, shot.wide.width) == (f"{tmp_path.name}/name.png", 100 * WIDTH)
    assert shot.narrow is not None
    assert (shot.narrow.url, shot.narrow.width) == (f"{tmp_path.name}/name-narrow.png", round(100 * PHONE))
    assert shot.narrow.height > shot.wide.height  # one panel below the other
    assert not shot.is_wide
    assert (page_width(), is_narrow()) == (WIDTH, False)


@pytest.mark.parametrize(("inches", "is_wide"), [(PHONE, False), (WIDTH, True)])
def test_a_picture_of_one_size(inches, is_wide, tmp_path):
    """Narrow ones fit everywhere; those that are always wide scroll on small screens."""
    shot = shot_of(lambda: Figure(figsize=(inches, 2.0)), tmp_path)
    assert (shot.narrow, shot.is_wide) == (None, is_wide)
    assert shot.wide.url.startswith("data:image/png;base64,")
    assert [file.name for file in tmp_path.iterdir()] == ["name.png"]
    text = TEMPLATES.get_template("parts.html").module.figures([shot], "section")
    assert ('class="wide"' in text) == is_wide


def test_pictures_have_few_colours(tmp_path):
    shot_of(two_panels, tmp_path)
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        assert content[25] == 3  # a palette
        assert len(content) < 12_000
        assert not {b"tEXt", b"tIME", b"iTXt"} & {content[i : i + 4] for i in range(len(content))}
