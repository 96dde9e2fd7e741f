"""Sections of the report on what the paper claims and has no table of: splits of K, memory of training, gradients by samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from tailsum_studies.paper import published
from tailsum_studies.paper.report.compare import is_ours, shown
from tailsum_studies.paper.report.tables import WORDS, key_of
from tailsum_studies.paper.splits import exponent_of, is_tail
from tailsum_studies.report.table import Section, Table, groups, rows_of
from tailsum_studies.report.wording import NOTHING, capital, number, percent, with_spread

MIB = 2**20
FULL = "autograd"  # what costs are held against


def more_sections(found: Mapping[str, pd.DataFrame]) -> list[Section]:
    """A section for each of these experiments that was run."""
    made: dict[str, Callable[[str, pd.DataFrame], Iterable[Table]]] = {
        "splits": split_tables,
        "memory": memory_tables,
        "relaxed": relaxed_tables,
    }
    return [
        Section(name, WORDS["titles"][name], WORDS["words"][name], list(make(name, found[name])))
        for name, make in made.items()
        if name in found
    ]


# Splits.


def split_tables(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """Errors for each split on the paper's models, then what top states gain on all models."""
    papers = found[~found.model.map(is_tail)]
    for (structure, quantity, label), group in groups(with_structure(papers), "structure", "quantity", "label"):
        whole = group[group.kept == group.kept.max()]
        lines = pd.DataFrame(
            {
                "Level": [capital(each) for each in whole.level],
                "K1 + K2": [split_text(row) for row in rows_of(whole)],
                "Bias (nats)": [with_spread(row.bias, row.bias_error) for row in rows_of(whole)],
                "Variance (nats²)": [number(each) for each in whole.variance],
                "Mean square error (nats²)": [with_spread(row.mse, row.mse_error) for row in rows_of(whole)],
            }
        ).set_index(["Level", "K1 + K2"])
        states = int(whole.states.iloc[0])
        caption = f"{capital(structure)} {quantity}, N = {states:,}, {label} of the states (K = {whole.kept.iloc[0]:,})"
        ours = {split_text(row) for row in rows_of(whole) if is_ours(row.method)}
        yield Table(key_of(name, structure, quantity, states, label), caption, lines, ours)
    for (quantity, label), group in groups(found, "quantity", "label"):
        gains = pd.DataFrame([_gain_line(model, each, found) for model, each in groups(group, "model")])
        caption = f"What top states gain, {quantity}, {label} of {group.states.iloc[0]:,} states: ratios of mean square errors"
        key = key_of(name, "gains", quantity, int(group.states.iloc[0]), label)
        yield Table(key, caption, gains.set_index("Model"), notes=[WORDS["notes"]["gains"]])


def with_structure(found: pd.DataFrame) -> pd.DataFrame:
    """With the parts of the models' names."""
    parts = [published.structure_and_level(model) for model in found.model]
    return found.assign(structure=[each for each, _ in parts], level=[each for _, each in parts])


def split_text(row: Any) -> str:
    """How many states are kept for certain and how many drawn, or whose method finds that itself."""
    return f"{row.kept - row.sampled:,} + {row.sampled:,}" if row.sampled else shown(row.method)


def gains(group: pd.DataFrame) -> dict[str, float]:
    """Ratios of mean square errors, of one model, quantity and K: what it is without top states, over what it is with them.

    "half" and "all but one" have as many states kept; "same draws" has half of K drawn, and the other half as top states
    or nothing in their place.
    """
    k = group.kept.max()
    errors = {(row.kept - row.sampled, row.sampled): row.mse for row in rows_of(group) if row.sampled}
    half = k // 2
    pairs = {
        "half": ((0, k), (half, k - half)),
        "all but one": ((0, k), (k - 1, 1)),
        "same draws": ((0, half), (half, k - half)),
    }
    return {name: errors[a] / errors[b] for name, (a, b) in pairs.items() if errors.get(b) and a in errors}


def _gain_line(model: str, group: pd.DataFrame, found: pd.DataFrame) -> dict[str, str]:
    entropy = found.exact[(found.model == model) & (found.quantity == "entropy")].iloc[0]
    gained = {name: number(value, 2) for name, value in gains(group).items()}
    whole = group[(group.kept == group.kept.max()) & (group.sampled > 0)]
    best = whole.loc[whole.mse.idxmin()]
    return {
        "Model": f"Exponent {exponent_of(model):g}" if is_tail(model) else capital(model),
        "Entropy (nats)": number(entropy),
        "Draws alone / half top": gained.get("half", NOTHING),
        "Draws alone / all but one top": gained.get("all but one", NOTHING),
        "Half the draws alone / with half top": gained.get("same draws", NOTHING),
        "Best of the splits": split_text(best),
    }


# Memory.


def memory_tables(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """For each source of scores: the memory of every way to take a step, with its share of the full step's, and seconds."""
    for model, group in groups(found, "model"):
        ours = [way_text(row) for row in rows_of(group) if is_ours(row.method)]
        memory, seconds = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
        for states, each in groups(group, "states"):
            full = each.peak_bytes[each.method == FULL]
            for row in rows_of(each):
                share = f" ({percent(row.peak_bytes / full.iloc[0])})" if len(full) else ""
                memory.setdefault(way_text(row), {})[f"N = {states:,}"] = number(row.peak_bytes / MIB) + share
                seconds.setdefault(way_text(row), {})[f"N = {states:,}"] = number(row.seconds, 2)
        whats = {
            "peak bytes": (f"memory at the peak (MiB), and its share of the step by {FULL}", memory),
            "seconds": ("seconds, the fastest of up to five", seconds),
        }
        for key, (what, lines) in whats.items():
            frame = pd.DataFrame.from_dict(lines, orient="index").rename_axis(index="Step")
            yield Table.filled(key_of(name, model, key), f"Transitions {model}: {what}", frame, ours)


def way_text(row: Any) -> str:
    """A way to take a step, with the share of the states it keeps."""
    return capital(shown(row.method)) + ("" if row.label == "all" else f", {row.label}")


# Gradients by samples.


def relaxed_tables(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """Bias and deviation of every way to estimate the gradient, over the size of the true one."""
    for (model, states), group in groups(found, "model", "states"):
        lines = list[dict[str, str]]()
        for (label, method), each in groups(group, "label", "method"):
            parts = {row.parameter: row for row in rows_of(each)}
            whole = parts["all"]
            lines.append(
                {
                    "Sums": label if whole.kept == states else f"{label}, K = {whole.kept}",
                    "Gradient": method,
                    "Bias": with_spread(whole.bias, whole.bias_error),
                    "Deviation": number(whole.deviation),
                    "Root mean square error": number((whole.bias**2 + whole.deviation**2) ** 0.5),
                    **{
                        f"Bias: {part}": with_spread(x.bias, x.bias_error) for part, x in parts.items() if part != "all"
                    },
                    "Seconds": number(whole.seconds, 2),
                }
            )
        first = group.iloc[0]
        caption = (
            f"{model}, N = {states:,}: {first.samples} samples a sentence, {first.replicates} replicates; "
            "bias and deviation over the size of the gradient"
        )
        frame = pd.DataFrame(lines).set_index(["Sums", "Gradient"])
        yield Table(key_of(name, model, states), caption, frame, notes=[WORDS["notes"]["relaxed"]])
