"""What a model has learned: where its states occur in the training sentences, and a page to browse it all.

Words and states are numbers. An occurrence is one word of one sentence with the state that a sample from q gave it;
"<end>" counts as a word.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tailsum.nn import Estimator, StructuredVAE
from tailsum_studies.files import whole
from tailsum_studies.text import Vocabulary
from tailsum_studies.vae.data import END, Corpus, Numbered
from tailsum_studies.vae.evaluate import drawn, n_batches
from tailsum_studies.vae.generate import sample_prior
from tailsum_studies.vae.occurrences import Occurrences
from tailsum_studies.vae.run import Run, read_json

CONTEXTS = 3  # for each state
WORDS_IN_FILE = 10
PRIOR_SAMPLES = 20


@torch.no_grad()
def gather(
    model: StructuredVAE,
    sentences: Sequence[Numbered],
    estimator: Estimator,
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> Occurrences:
    """One sample from q for every sentence; `step` is called after each batch.

    How often states occur in it is the aggregated posterior, the paper's Figure 2.
    """
    states: list[list[int]] = [[]] * len(sentences)
    for chosen, sampled, lengths in drawn(model, sentences, estimator, seed):
        for number, row, length in zip(chosen, sampled.tolist(), lengths.tolist(), strict=True):
            states[number] = row[:length]
        step()
    return Occurrences.of(sentences, states, model.decoder.n_states)


def n_steps(corpus: Corpus) -> int:
    """How often `explore` calls `step`."""
    return n_batches(corpus.train) + 1


def explore(
    run: Run,
    corpus: Corpus,
    model: StructuredVAE,
    estimator: Estimator,
    step: Callable[[], None] = lambda: None,
    seed: int = 0,
    trained: int | None = None,
) -> Path:
    """Write the page `index.html` about a run into its folder, its pictures in `plots`, and `states.csv`; gives the page.

    The same model and seed give the same files. The model is that of step `trained`: what `tailsum evaluate` found of
    the run at another step is left out.
    """
    from tailsum_studies.vae.report import Findings, write_page  # noqa: PLC0415  (heavy, and only here)

    path = run.folder / "evaluation.json"
    evaluation = read_json(path) if path.exists() else {}
    if not isinstance(evaluation, dict):
        raise ValueError(f"{path} must hold an object: got a {type(evaluation).__name__}")
    if trained is not None and evaluation.get("step") != trained:
        evaluation = {}
    found = gather(model, corpus.train, estimator, seed, step)
    write_states(run.folder / "states.csv", found, corpus.vocabulary)
    (end,) = corpus.vocabulary.encode([END])
    samples = sample_prior(model.decoder, PRIOR_SAMPLES, run.settings.longest + 1, end, seed)
    examples = found.examples(CONTEXTS, seed)
    page = write_page(
        run.folder,
        Findings(run.settings, corpus.vocabulary, found, examples, samples, run.losses(), evaluation),
    )
    step()
    return page


def write_states(path: Path, found: Occurrences, vocabulary: Vocabulary) -> None:
    """All states as a table, those that tell most first: how often each occurs, what it tells, its most frequent words."""
    counts, net, words = found.counts.tolist(), found.information.net.tolist(), found.words_of(WORDS_IN_FILE)
    with whole(path) as file:
        writer = csv.writer(file)
        writer.writerow(["state", "count", "nats", "words"])
        for state in found.ranked():
            said = vocabulary.decode([word for word, _ in words[state]])
            writer.writerow([state, counts[state], f"{net[state]:.6f}", " ".join(said)])
