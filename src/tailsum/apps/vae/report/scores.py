"""Tables of the evaluation: the likelihood beside that of other models, and the parts of the bound."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tailsum.apps.report.table import Table
from tailsum.apps.report.wording import NOTHING, fixed
from tailsum.apps.vae.report.findings import PARTS, at

SETS = ("dev", "test")
NAMES = {"unigram": "Unigram", "bigram": "Bigram (Kneser-Ney)", "lstm": "LSTM without states"}
OURS = "Structured VAE"
ERROR_NOTE = (
    "Behind ± is the standard error of a mean over sentences. All models saw the same sentences, so that their "
    "differences are surer than these errors say."
)
BOUND_NOTE = (
    "log p(states) and the entropy together are minus what q knows of the states beyond the prior. Where they cancel, "
    "the states say nothing about the words."
)


def tables(evaluation: Mapping[str, Any]) -> list[Table]:
    """Those that there is something to fill with."""
    return [table for table in (likelihoods(evaluation), bounds(evaluation)) if not table.frame.empty]


def baselines(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of other models, by their names."""
    found = evaluation.get("baselines")
    return {str(NAMES.get(name, name)): scores for name, scores in found.items()} if isinstance(found, Mapping) else {}


def likelihoods(evaluation: Mapping[str, Any]) -> Table:
    """The negative log-likelihood of each model, the autoencoder's last and marked."""
    rows = {name: _scores(found) for name, found in {**baselines(evaluation), OURS: evaluation}.items()}
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("Model")
    frame = frame[(frame != NOTHING).any(axis=1)]
    notes = [ERROR_NOTE, *_how(evaluation)]
    return Table("likelihood", "Negative log-likelihood (nats): the lower, the better", frame, {OURS}, notes)


def _scores(found: Any) -> dict[str, str]:
    cells: dict[str, str] = {}
    for part in SETS:
        mean, error = at(found, part, "per_sentence"), at(found, part, "standard_error")
        spread = "" if mean is None or error is None else f" ± {error:.2f}"
        cells[f"{part.capitalize()}, per word"] = fixed(at(found, part, "per_word"), 3)
        cells[f"{part.capitalize()}, per sentence"] = fixed(mean, 2) + spread
    return cells


def _how(evaluation: Mapping[str, Any]) -> list[str]:
    """How the autoencoder's likelihood was found, if that is known."""
    samples = [n for part in SETS if (n := at(evaluation, part, "samples")) is not None]
    estimator = evaluation.get("estimator")
    by = ", with exact sums over them" if estimator == "full" else f", with sums by “{estimator}”" if estimator else ""
    return [
        f"The autoencoder's is by importance sampling with {n:,.0f} samples of the states of each sentence{by}: too "
        "few samples make it look worse than it is, not better."
        for n in samples[:1]
    ]


def bounds(evaluation: Mapping[str, Any]) -> Table:
    """The parts of the bound per sentence, and what importance sampling adds."""
    rows: dict[str, dict[str, str]] = {}
    for part in SETS:
        words, states, entropy = (at(evaluation, part, name) for name in PARTS)
        if words is None or states is None or entropy is None:
            continue
        nll, count = at(evaluation, part, "per_sentence"), at(evaluation, part, "sentences")
        rows[part.capitalize()] = {
            "log p(words | states)": fixed(words, 2),
            "log p(states)": fixed(states, 2),
            "Entropy of q": fixed(entropy, 2),
            "ELBO": fixed(words + states + entropy, 2),
            "log p(words)": fixed(None if nll is None else -nll, 2),
            "± by sampling": fixed(at(evaluation, part, "sampling_error"), 3),
            "Sentences": NOTHING if count is None else f"{count:,.0f}",
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("Part")
    return Table("bound", "The bound (nats per sentence)", frame, notes=[BOUND_NOTE])
