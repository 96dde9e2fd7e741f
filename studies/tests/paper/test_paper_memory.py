"""Training steps: all ways to take one give the same gradient where they should, and their memory is counted in full."""

import pytest
import torch
from paper_cases import cost_rows

from tailsum_studies.paper.memory import SOURCES, by_autograd, chain_of, memory, parameters, step
from tailsum_studies.paper.report.beyond import more_sections
from tailsum_studies.paper.report.summary import summaries


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.name)
def test_the_authors_way_and_the_exact_one_agree(source, generator):
    given = {name: x.double() for name, x in parameters(source, 12, generator).items()}

    def recorded(p):
        return by_autograd(p["words"] @ p["states"].T, source.potential(p).block())

    def exact(p):
        chain = chain_of(source, p)
        return chain.log_partition() + chain.entropy()

    one, other = step(recorded, given), step(exact, given)
    assert torch.allclose(recorded(given), exact(given))
    assert all(torch.allclose(one[name], other[name], atol=1e-8) for name in given)
    assert all(x.abs().sum() > 0 for x in one.values())


def test_memory_counts_everything():
    rows = {}
    for cell in memory(100, 0):
        if "-n100-" in cell.name and "refined" not in cell.name and "streamed" not in cell.name:
            (row,) = cell.run(lambda: None)
            rows[row.model, row.method, row.label] = row
    assert all(r.peak_bytes >= r.parameter_bytes // 2 and r.seconds > 0 for r in rows.values())
    table = rows["per step, a table", "autograd", "all"]
    assert table.peak_bytes > table.parameter_bytes > 2 * 9 * 100 * 100 * 4
    for source in SOURCES:
        assert rows[source.name, "paper", "1%"].peak_bytes < rows[source.name, "autograd", "all"].peak_bytes
    # A table that is a parameter has a gradient as large as itself, whatever is kept.
    assert rows["per step, a table", "paper", "1%"].peak_bytes > 0.25 * table.peak_bytes
    own = "per step, by a function"
    assert rows[own, "paper", "1%"].peak_bytes < 0.1 * rows[own, "autograd", "all"].peak_bytes


def test_what_does_not_fit_is_left_out():
    names = [cell.name for cell in memory(40_000, 0) if "-n80000-" in cell.name]
    assert not [name for name in names if "autograd" in name or "a_table" in name]
    assert [name for name in names if "embeddings" in name and "tailsum" in name]


def test_the_table_has_shares():
    (section,) = more_sections(summaries({"memory": cost_rows()}))
    memory, seconds = section.tables
    assert memory.frame.loc["Ours, 1%", "N = 2,000"] == "7.00 (1.0%)"
    assert memory.frame.loc["Autograd", "N = 2,000"] == "700 (100%)"
    assert seconds.frame.loc["Ours, 1%", "N = 2,000"] == "0.050"
    assert "Ours, 1%" in memory.ours
