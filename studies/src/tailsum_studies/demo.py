"""The main job of `tailsum demo`: the estimators side by side on two large chains, as a table and a picture."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tailsum import (
    LocalGlobal,
    Lookahead,
    Optimal,
    PeakMemory,
    Propose,
    Selection,
    Structure,
    TopAndSample,
    TopK,
    estimate,
)
from tailsum_studies.paper.chains import hard_chain, paper_chain, paper_proposal
from tailsum_studies.progress import shown


@dataclass(frozen=True)
class Row:
    """What one estimator reached on one model: errors in nats, one for each repeat."""

    model: str
    estimator: str
    share: float
    log_partition: Tensor
    entropy: Tensor
    seconds: float
    peak: int


def estimators(n_states: int, proposal: Propose, repeats: int) -> Iterator[tuple[str, float, int, Selection, Propose]]:
    """TopK, the paper's estimator and ours, at 1% and 10% of the states: how often each runs, and how it sketches."""
    for share in (0.01, 0.1):
        k = max(2, round(share * n_states))
        yield "TopK", share, 1, TopK(k), proposal
        yield "paper", share, repeats, TopAndSample(top=k - 1, sampled=1), proposal
        yield "tailsum", share, repeats, Optimal(k), Lookahead()


def run_demo(n_states: int, length: int, seed: int, repeats: int, console: Console) -> list[Row]:
    """Measure every estimator on the paper's chain and on a peaked one."""
    with shown(console) as progress:
        task = progress.add_task("building chains", total=2 * (2 + 2 * (2 * repeats + 1)))
        generator = torch.Generator().manual_seed(seed)
        flat = paper_chain(n_states, length, generator=generator)
        peaked = hard_chain(n_states, 3.0, 3.0, length=length, generator=generator)
        models = {
            "paper's recipe": (flat.chain, paper_proposal(flat.states)),
            "peaked": (peaked, LocalGlobal()),
        }
        rows, zero = [], torch.zeros(1)
        for model, (chain, proposal) in models.items():
            progress.update(task, description=f"{model}: exact")
            start = time.perf_counter()
            with torch.no_grad(), PeakMemory() as memory:
                log_partition, entropy = chain.log_partition(), chain.entropy()
            rows.append(Row(model, "exact", 1.0, zero, zero, time.perf_counter() - start, memory.peak))
            progress.advance(task, 2)
            for name, share, count, selection, propose in estimators(n_states, proposal, repeats):
                progress.update(task, description=f"{model}: {name} {share:.0%}")
                start, found = time.perf_counter(), list[Tensor]()
                for _ in range(count):  # one at a time, to be compared with the exact sum
                    found.append(single(chain, selection, propose, generator))
                    progress.advance(task)
                seconds = (time.perf_counter() - start) / count
                with PeakMemory() as memory:
                    single(chain, selection, propose, generator)
                errors = torch.cat(found) - torch.stack((log_partition, entropy))
                rows.append(Row(model, name, share, errors[:, 0], errors[:, 1], seconds, memory.peak))
    return rows


def single(model: Structure, selection: Selection, proposal: Propose, generator: torch.Generator) -> Tensor:
    """Log-partition and entropy of one sketch: `[1, 2]`."""
    how = {"selection": selection, "proposal": proposal, "generator": generator}
    return estimate(model, log_partition_and_entropy, replicates=1, check=False, **how).replicates


def log_partition_and_entropy(small: Structure) -> Tensor:
    """Both together: `[*batch, 2]`."""
    return torch.stack((small.log_partition(), small.entropy()), -1)


def demo_table(rows: list[Row], n_states: int, length: int) -> Table:
    """The figures: root mean square errors over the repeats."""
    table = Table(title=f"{n_states:,} states, {length} positions: log Z and entropy, error in nats")
    for column in ("model", "estimator", "states kept", "log Z", "entropy", "seconds", "peak memory"):
        table.add_column(column, justify="left" if column in {"model", "estimator"} else "right")
    for model, members in groupby(rows, attrgetter("model")):
        for place, row in enumerate(members):
            rms = (errors.square().mean().sqrt().item() for errors in (row.log_partition, row.entropy))
            table.add_row(
                "" if place else model,
                row.estimator,
                f"{row.share:.0%}",
                *("-" if row.estimator == "exact" else f"{error:.2g}" for error in rms),
                f"{row.seconds:.3f}",
                f"{row.peak / 2**20:,.0f} MiB",
            )
        table.add_section()
    return table


def demo_picture(rows: list[Row], path: Path) -> None:
    """The error distributions: each estimator's repeats, on a symmetric logarithmic scale."""
    models = list(dict.fromkeys(row.model for row in rows))
    figure = Figure(figsize=(11, 3.4 * len(models)))
    axes = figure.subplots(len(models), 2, squeeze=False)
    colours = {"TopK": "tab:gray", "paper": "tab:orange", "tailsum": "tab:blue"}
    for line, model in zip(axes, models, strict=True):
        drawn = [row for row in rows if row.model == model and row.estimator != "exact"]
        for axis, name in zip(line, ("log_partition", "entropy"), strict=True):
            for place, row in enumerate(reversed(drawn)):
                errors = getattr(row, name)
                axis.scatter(errors, torch.full_like(errors, place), color=colours[row.estimator], alpha=0.5, s=18)
            axis.set_yticks(range(len(drawn)), [f"{row.estimator} {row.share:.0%}" for row in reversed(drawn)])
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_xscale("symlog", linthresh=1e-3)
            axis.set_title(f"{model}: error of {'log Z' if name == 'log_partition' else 'entropy'} (nats)")
            axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
