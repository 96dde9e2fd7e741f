"""Splits of K: the cells are the paper's estimator with every split, and what they say is what replicates add up to."""

import math

import torch
from paper_cases import split_rows

import tailsum as ts
from tailsum_studies.paper.cells import seeded
from tailsum_studies.paper.report.beyond import gains, more_sections
from tailsum_studies.paper.report.summary import summaries
from tailsum_studies.paper.splits import drawn, splits, tail_chain, tail_subject


def test_every_split_has_its_cell():
    cells = list(splits(2000, 10, 0))
    names = [c.name for c in cells]
    assert len(set(names)) == len(names)
    for model in ("chain", "hypertree"):
        for k in (20, 200):
            found = [n for n in names if n.startswith(f"{model}__dense-n2000-paper-") and f"-k{k}-" in n]
            assert len(found) == len(drawn(k))
    assert drawn(200)[0] == 1
    assert drawn(200)[-1] == 200
    assert sum("tail__exponent_0-" in n for n in names) == 2 * (4 + 2)


def test_a_cell_adds_up_its_replicates():
    cell = next(c for c in splits(100, 3, 5) if c.name.startswith("tail__exponent_1-") and "k10-k2=5" in c.name)
    steps = []
    rows = cell.run(lambda: steps.append(1))
    assert len(steps) == cell.steps == 12
    subject = tail_subject(100, 1.0, 5)
    chain = subject.make(seeded(5, f"{subject.name} 100")).model
    draws, found = seeded(5, cell.name), {"log Z": [], "entropy": []}
    with torch.no_grad():
        for _ in range(12):
            small = chain.sketch(proposal=ts.LocalGlobal(), selection=ts.TopAndSample(5, 5), generator=draws)
            found["log Z"].append(small.log_partition() - chain.log_partition())
            found["entropy"].append(small.entropy() - chain.entropy())
    for row in rows:
        errors = torch.stack(found[row.quantity]).double()
        assert row.sampled == 5
        assert math.isclose(row.bias, errors.mean().item(), rel_tol=1e-3, abs_tol=1e-5)
        assert math.isclose(row.bias**2 + row.variance, row.mse, rel_tol=1e-9)
        assert math.isclose(row.mse, errors.square().mean().item(), rel_tol=1e-3)


def test_tails_are_what_they_are_called(generator):
    flat, steep = (tail_chain(300, exponent, generator=generator) for exponent in (0.0, 2.0))
    assert flat.node_scores().std() == 0
    ranked = steep.node_scores().sort(-1, descending=True).values
    assert torch.allclose(ranked, -2 * torch.arange(1.0, 301).log().expand_as(ranked), atol=1e-5)
    assert steep.entropy() < flat.entropy() / 2


def test_gains_are_ratios_of_mean_squares():
    frame = summaries({"splits": split_rows()})["splits"]
    found = gains(frame[(frame.model == "tail, exponent 2") & (frame.quantity == "log Z")])
    assert found == {"half": 4.0 / 0.5, "all but one": 4.0 / 2.0, "same draws": 9.0 / 0.5}
    (section,) = more_sections({"splits": frame})
    text = {table.caption: table for table in section.tables}
    errors = text["Chain log Z, N = 2,000, 1% of the states (K = 20)"].frame
    assert list(errors.index) == [("Dense", "19 + 1"), ("Dense", "10 + 10"), ("Dense", "0 + 20"), ("Dense", "ours")]
    line = text["What top states gain, log Z, 1% of 2,000 states: ratios of mean square errors"].frame.loc["Exponent 2"]
    assert line["Draws alone / half top"] == "8.0"
    assert line["Best of the splits"] == "10 + 10"
