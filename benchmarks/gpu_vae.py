"""Structured VAEs with 10,000 and 50,000 states on a GPU: whether the loss falls, seconds a step, memory."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.measure import Figure
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.processes import Processes
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Trainer

STEPS = 60
CASES: dict[str, dict[str, Any]] = {
    "2,000 states, exact": {"states": 2_000},
    "10,000 states, exact": {"states": 10_000},
    "10,000 states, 200 kept": {"states": 10_000, "kept": 200, "landmarks": 128},
    "50,000 states, 200 kept": {"states": 50_000, "kept": 200, "landmarks": 128},
}


def vae_figures() -> Iterator[Figure]:
    """Each case for some steps, on sentences of Python's documentation."""
    if not torch.cuda.is_available():
        return
    corpus = Corpus.read(None)
    for name, changes in CASES.items():
        settings = Settings(**{"steps": STEPS, "batch": 32, "warm_up": 0.0, "state_size": 64, **changes})
        run = Run(Path(tempfile.mkdtemp()), settings, corpus.vocabulary, "")
        trainer = Trainer(run, corpus, torch.device("cuda"), Processes())
        losses = [trainer.step().nll for _ in range(5)]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        losses += [trainer.step().nll for _ in range(STEPS - 5)]
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / (STEPS - 5)
        memory = torch.cuda.max_memory_allocated() / 2**30
        first, last = mean(losses[:5]), mean(losses[-5:])
        measured = (
            f"bound {first:.2f} -> {last:.2f} nats a word in {STEPS} steps, {seconds:.2f} s a step, {memory:.1f} GiB"
        )
        yield Figure(f"VAE, {name}", measured, "the loss falls", last < first - 1)
        del trainer
        torch.cuda.empty_cache()
