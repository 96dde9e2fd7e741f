"""The paper's Table 5 and Figure 2: structured VAEs trained by each estimator, three seeds each, and how well they do.

    python -m benchmarks.table5 --data captions --output table5 --device cuda --workers 18

Each run is a process of its own; what is finished stays in the output folder, and the same command goes on from there.
"""

import argparse
import csv
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console

from tailsum import table_budget
from tailsum.apps.vae.build import learned
from tailsum.apps.vae.checkpoint import Checkpoint, write
from tailsum.apps.vae.data import Corpus, evenly
from tailsum.apps.vae.evaluate import likelihood, sums_for
from tailsum.apps.vae.explore import gather
from tailsum.apps.vae.processes import Processes
from tailsum.apps.vae.run import Run, read_json, write_json
from tailsum.apps.vae.settings import Settings
from tailsum.apps.vae.train import Trainer, Watcher, train

# A tenth of the states is kept at each position: for TopK the best, for RDP half of them the best and half drawn. Each row
# has the dropout, of 0.3, 0.4 and 0.5 (with 2,000 states also 0.6), that did best on the dev part with seed 0.
ROWS: dict[str, dict[str, Any]] = {
    "Full-100": {"estimator": "full", "states": 100, "dropout": 0.5},
    "TopK-100": {"estimator": "topk", "states": 100, "kept": 10, "dropout": 0.5},
    "RDP-100": {"estimator": "rdp", "states": 100, "kept": 10, "dropout": 0.5},
    "TopK-2000": {"estimator": "topk", "states": 2000, "kept": 200, "dropout": 0.5},
    "RDP-2000": {"estimator": "rdp", "states": 2000, "kept": 200, "dropout": 0.5},
    "ours-2000": {"estimator": "tailsum", "states": 2000, "dropout": 0.4},
}
SLOWEST_FIRST = ("RDP-2000", "TopK-2000", "ours-2000", "RDP-100", "TopK-100", "Full-100")
SEEDS = (0, 1, 2)
COMMON: dict[str, Any] = {
    "steps": 1960,  # 20 passes over the captions, with a look at the dev part after each
    "check_every": 98,
    "batch": 256,
    "rate": 5e-3,
    "kl_weight": 1.0,
    "state_size": 128,
    "longest": 24,
}


def names() -> list[str]:
    """Every run."""
    return [f"{row}-{seed}" for row in SLOWEST_FIRST for seed in SEEDS]


def run_one(name: str, given: argparse.Namespace) -> None:
    """Train and evaluate one run; its results go to `output/name.json`, its weights beside it."""
    row, seed = name.rsplit("-", 1)
    settings = Settings(**{"data": str(given.data), **COMMON, **ROWS[row], "seed": int(seed), **given.changes})
    corpus = Corpus.read(given.data, settings.words, longest=settings.longest)
    folder, place = given.output / "runs" / name, torch.device(given.device)
    run = Run.open(folder) if (folder / "settings.json").exists() else Run.new(folder, settings, corpus).write()
    if run.settings != settings:
        raise ValueError(f"{folder} must have been begun with the same settings: choose another --output")
    train(Trainer(run, corpus, place, Processes()), Watcher())
    model = run.model(place)
    sums, trained = sums_for(model, settings.sums()), settings.sums()
    found: dict[str, Any] = {"row": row, "seed": int(seed), "settings": settings.as_json()}
    for part in ("dev", "test"):
        some = evenly(getattr(corpus, part), given.sentences)
        result = likelihood(model, some, sums, given.samples)
        bound = {key: value.item() for key, value in result.bound._asdict().items()}
        found[part] = {**result.nll._asdict(), "sampling_error": result.sampling_error, **bound}
    # Figure 2: of the posterior itself, and as the run's own estimator draws from it.
    found["counts"] = gather(model, corpus.train, sums).counts.tolist()
    found["counts as trained"] = gather(model, corpus.train[::4], trained).counts.tolist()
    write(folder / "weights.safetensors", Checkpoint(learned(model), {"settings": settings.as_json()}))
    write_json(given.output / f"{name}.json", found)


def report(output: Path) -> str:
    """The table, in Markdown, from all runs that are finished; a CSV file beside it has every run."""
    found = [read_json(path) for path in sorted(output.glob("*-?.json"))]
    with (output / "table5.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "seed", "dev", "test", "kl", "used", "used as trained"])
        writer.writerows([each["row"], each["seed"], *_numbers(each)] for each in found)
    lines = ["| | dev NLL | test NLL | KL | states in use | in its own samples |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        if columns := list(zip(*(_numbers(each) for each in found if each["row"] == row), strict=True)):
            dev, test, kl = (_spread(column) for column in columns[:3])
            lines.append(f"| {row} | {dev} | {test} | {kl} | {mean(columns[3]):.1%} | {mean(columns[4]):.1%} |")
    return "\n".join(lines)


def figure(output: Path) -> None:
    """Figure 2: how often each state occurs, sorted, in one sample for each training sentence; a line for each seed."""
    import matplotlib as mpl  # noqa: PLC0415  (heavy, and only here)

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    shown, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for colour, row in enumerate(("TopK-2000", "RDP-2000", "ours-2000")):
        runs = [read_json(path) for path in sorted(output.glob(f"{row}-?.json"))]
        label = f"{row}: {mean(_used(run['counts']) for run in runs):.0%} in use" if runs else None
        for run in runs:
            counts = sorted((count for count in run["counts"] if count), reverse=True)
            ax.plot([count / sum(counts) for count in counts], color=f"C{colour}", lw=1, label=label)
            label = None
    ax.set(xlabel="states, by frequency", ylabel="share of all words", yscale="log", xlim=(0, 2000))
    ax.legend(frameon=False)
    shown.savefig(output / "figure2.png", dpi=150)


def _used(counts: list[int]) -> float:
    return sum(count > 0 for count in counts) / len(counts)


def _numbers(each: dict[str, Any]) -> list[float]:
    used = [_used(each[key]) for key in ("counts", "counts as trained")]
    divergence = -(each["test"]["states"] + each["test"]["entropy"])
    return [each["dev"]["per_sentence"], each["test"]["per_sentence"], divergence, *used]


def _spread(column: tuple[float, ...]) -> str:
    return f"{mean(column):.2f}" + (f" ± {stdev(column):.2f}" if len(column) > 1 else "")


def main() -> None:
    """Run what is not finished, so many at a time, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--sentences", type=int, default=100_000, help="of dev and test, at most")
    parser.add_argument(
        "--budget", type=int, default=4, help="GiB for tables of pair scores; more kept states need more"
    )
    parser.add_argument("--changes", type=json.loads, default={}, help="other settings, as JSON")
    parser.add_argument("--only", help="one run, such as ours-2000-0")
    given = parser.parse_args()
    if given.only:
        with table_budget(given.budget << 30):
            run_one(given.only, given)
        return
    given.output.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in names() if not (given.output / f"{name}.json").exists()]
    console = Console()

    def start(name: str) -> bool:
        command = [sys.executable, "-m", "benchmarks.table5", *sys.argv[1:], "--only", name]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  (our own)
        said = "finished" if done.returncode == 0 else f"failed: {done.stderr[-500:]}"
        console.print(f"{name} {said}", markup=False)
        return done.returncode == 0

    with ThreadPoolExecutor(given.workers) as pool:
        whole = all(list(pool.map(start, waiting)))
    table = report(given.output)
    (given.output / "table5.md").write_text(table + "\n")
    figure(given.output)
    console.print(table, markup=False, soft_wrap=True)
    sys.exit(not whole)


if __name__ == "__main__":
    main()
