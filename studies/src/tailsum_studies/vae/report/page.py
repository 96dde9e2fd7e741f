"""The page about a run: computes the numbers and tables that the template `vae.html` shows."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tailsum.plot import state_colour
from tailsum_studies.report.page import write
from tailsum_studies.report.picture import save
from tailsum_studies.report.table import Table
from tailsum_studies.report.wording import NOTHING, fixed
from tailsum_studies.text import UNKNOWN
from tailsum_studies.vae.data import END
from tailsum_studies.vae.report.figures import pictures
from tailsum_studies.vae.report.findings import PARTS, WORDS, Findings, at, curve
from tailsum_studies.vae.settings import Settings

CARDS, OPEN = 60, 12  # states on the page, and how many of them are seen at once
CHIPS = 12  # words of a state
SETS = ("dev", "test")
NAMES = {"unigram": "Unigram", "bigram": "Bigram (Kneser-Ney)", "lstm": "LSTM without states"}
OURS = "Structured VAE"
PICTURES_ONLY = {"transitions", "training"}  # sections that are there only where something was drawn


def write_page(folder: Path, findings: Findings) -> Path:
    """Write `index.html` and, in `plots`, its pictures; gives the page's path."""
    shots = [save(picture, folder / "plots") for picture in pictures(findings)]
    drawn = {shot.section for shot in shots}
    found, words = findings.occurrences, findings.vocabulary
    used = int((found.counts > 0).sum())
    shown = found.ranked()[: min(CARDS, used)]
    covered = found.counts.sort(descending=True)[0].cumsum(0).tolist()
    return write(
        folder / "index.html",
        "vae.html",
        contents={
            name: title for name, title in WORDS["sections"].items() if name in drawn or name not in PICTURES_ONLY
        },
        settings=findings.settings,
        score=_score(findings),
        found=found,
        used=used,
        steps=[0, *curve(findings.losses, "train").index][-1],
        half=next(place for place, count in enumerate(covered, 1) if 2 * count >= covered[-1]),
        shown=shown,
        counts=found.counts.tolist(),
        net=found.information.net.tolist(),
        words_of=found.words_of(CHIPS),
        vocabulary=words,
        examples=findings.examples,
        open=OPEN,
        unknown=UNKNOWN if UNKNOWN in words.words else "",
        said=[list(zip(words.decode(each.words), each.states, strict=True)) for each in findings.samples],
        end=END,
        colour=state_colour,
        tables=[each for make in (likelihoods, bounds) if not (each := make(findings.evaluation)).frame.empty],
        chosen=_chosen(findings.settings),
        shots=shots,
    )


def _score(findings: Findings) -> list[tuple[str, str, str]]:
    """The likelihood of the test part, or of the dev part, beside that of the best of the others."""
    for part in ("test", "dev"):
        if (value := at(findings.evaluation, part, "per_word")) is not None:
            scores = {name: at(found, part, "per_word") for name, found in baselines(findings.evaluation).items()}
            known = {name: score for name, score in scores.items() if score is not None}
            best = min(known, key=known.__getitem__, default="")
            note = f"{best}: {known[best]:.3f}" if best else "by importance sampling"
            return [(f"{value:.3f}", f"nats per word of the {part} part", note)]
    dev = curve(findings.losses, "dev")
    note = "at its best in training, by a few samples"
    return [] if dev.empty else [(f"{dev.min():.3f}", "nats per word of the dev part", note)]


def _chosen(settings: Settings) -> dict[str, dict[str, str]]:
    """The settings that were chosen, then those left as they were."""
    parts: dict[str, dict[str, str]] = {"Chosen": {}, "Left as they were": {}}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        part = parts["Left as they were" if value == field.default else "Chosen"]
        part[field.name.replace("_", " ")] = "none" if value is None else str(value)
    return parts


# Tables of the evaluation: the likelihood beside that of other models, and the parts of the bound.


def baselines(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of other models, by their names."""
    found = evaluation.get("baselines")
    return {str(NAMES.get(name, name)): scores for name, scores in found.items()} if isinstance(found, Mapping) else {}


def likelihoods(evaluation: Mapping[str, Any]) -> Table:
    """The negative log-likelihood of each model, the autoencoder's last and marked; and how its own was found."""
    rows = {name: _scores(found) for name, found in {**baselines(evaluation), OURS: evaluation}.items()}
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("Model")
    frame = frame[(frame != NOTHING).any(axis=1)]
    samples = [n for part in SETS if (n := at(evaluation, part, "samples")) is not None]
    estimator = evaluation.get("estimator")
    by = ", with exact sums over them" if estimator == "full" else f", with sums by “{estimator}”" if estimator else ""
    notes = [WORDS["notes"]["error"], *(WORDS["notes"]["samples"].format(samples=n, by=by) for n in samples[:1])]
    return Table("likelihood", "Negative log-likelihood (nats): the lower, the better", frame, {OURS}, notes)


def _scores(found: Any) -> dict[str, str]:
    cells: dict[str, str] = {}
    for part in SETS:
        mean, error = at(found, part, "per_sentence"), at(found, part, "standard_error")
        spread = "" if mean is None or error is None else f" ± {error:.2f}"
        cells[f"{part.capitalize()}, per word"] = fixed(at(found, part, "per_word"), 3)
        cells[f"{part.capitalize()}, per sentence"] = fixed(mean, 2) + spread
    return cells


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
    return Table("bound", "The bound (nats per sentence)", frame, notes=[WORDS["notes"]["bound"]])
