"""Tables of the evaluation: the likelihood beside that of other models, and the parts of the bound."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tailsum.apps.report.html import class_of, scrolling
from tailsum.apps.vae.report.findings import PARTS, at

SETS: Sequence[str] = ("dev", "test")
NAMES = {"unigram": "Unigram", "bigram": "Bigram (Kneser-Ney)", "lstm": "LSTM without states"}
NOTHING = "-"


def likelihood_table(evaluation: Mapping[str, Any]) -> str:
    """The negative log-likelihood of each model, the autoencoder's last and marked; nothing where there is none."""
    baselines = evaluation.get("baselines")
    others = baselines if isinstance(baselines, Mapping) else {}
    rows = [(str(NAMES.get(name, name)), scores, False) for name, scores in others.items()]
    rows.append(("Structured VAE", evaluation, True))
    filled = [(name, _scores(found), ours) for name, found, ours in rows if set(_scores(found)) != {NOTHING}]
    if not filled:
        return ""
    heads = ["Model", *(f"{part}, {unit}" for part in ("Dev", "Test") for unit in ("per word", "per sentence"))]
    table = _table("Negative log-likelihood (nats): the lower, the better", heads, filled)
    errors = (
        "Behind ± is the standard error of a mean over sentences. All models saw the same sentences, so that their "
        "differences are surer than these errors say."
    )
    notes = [errors, _how(evaluation)]
    return "\n".join([table, *(f'<p class="note">{escape(note)}</p>' for note in notes if note)])


def _scores(found: Any) -> list[str]:
    return [
        cell
        for part in SETS
        for cell in (
            _fixed(at(found, part, "per_word"), 3),
            _with_error(at(found, part, "per_sentence"), at(found, part, "standard_error")),
        )
    ]


def _how(evaluation: Mapping[str, Any]) -> str:
    """How the autoencoder's likelihood was found."""
    samples = next((n for part in SETS if (n := at(evaluation, part, "samples")) is not None), None)
    estimator = evaluation.get("estimator")
    if samples is None:
        return ""
    by = ", with exact sums over them" if estimator == "full" else f", with sums by “{estimator}”" if estimator else ""
    return (
        f"The autoencoder's is by importance sampling with {samples:,.0f} samples of the states of each sentence{by}: too "
        "few samples make it look worse than it is, not better."
    )


def bound_table(evaluation: Mapping[str, Any]) -> str:
    """The parts of the bound per sentence, and what importance sampling adds; nothing where they are missing."""
    heads = ["Part", "log p(words | states)", "log p(states)", "Entropy of q", "ELBO", "log p(words)"]
    heads += ["± by sampling", "Sentences"]
    rows: list[tuple[str, list[str], bool]] = []
    for part in SETS:
        values = [at(evaluation, part, name) for name in PARTS]
        if None in values:
            continue
        whole = math.fsum(value for value in values if value is not None)
        nll, error = (at(evaluation, part, name) for name in ("per_sentence", "sampling_error"))
        cells = [*values, whole, None if nll is None else -nll]
        count = at(evaluation, part, "sentences")
        last = [_fixed(error, 3), NOTHING if count is None else f"{count:,.0f}"]
        rows.append((part.capitalize(), [*(_fixed(cell, 2) for cell in cells), *last], False))
    if not rows:
        return ""
    note = (
        "log p(states) and the entropy together are minus what q knows of the states beyond the prior. Where they cancel, "
        "the states say nothing about the words."
    )
    return f'{_table("The bound (nats per sentence)", heads, rows)}\n<p class="note">{escape(note)}</p>'


def _fixed(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _with_error(value: float | None, error: float | None) -> str:
    return _fixed(value, 2) + ("" if value is None or error is None else f" ± {error:.2f}")


def _table(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str], bool]]) -> str:
    first, *others = heads
    head = f'<th scope="col" class="name">{escape(first)}</th>'
    head += "".join(f'<th scope="col">{escape(each)}</th>' for each in others)
    lines = [
        f'<tr{class_of("ours" if ours else "")}><th scope="row">{escape(name)}</th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells, ours in rows
    ]
    return scrolling(caption, head, "\n".join(["<tbody>", *lines, "</tbody>"]))
