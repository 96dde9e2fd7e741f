"""Kill `tailsum train` many times at random moments, and see whether it ends where an uninterrupted run does.

`python -m benchmarks.vae_resume [--kills 20] [--seed 0]` takes some minutes, most of which processes take to start. It
prints when each process was killed and what the next one went on from; and exits with 1 unless the losses and all
weights at the end are equal, bit by bit, to those of a run that was left alone.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tailsum_studies.vae.checkpoint import BEST, LAST, Checkpoint, Keeper, read
from tailsum_studies.vae.run import Run

LIMIT = 300  # seconds for one process
CHECK_EVERY = 3
SIZES = (
    *("--states", "50", "--estimator", "tailsum", "--kept", "20", "--landmarks", "20", "--batch", "16"),
    *(
        "--size",
        "16",
        "--state-size",
        "8",
        "--hidden",
        "16",
        "--check-every",
        str(CHECK_EVERY),
        "--word-dropout",
        "0.2",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vae_resume", description="Kill and resume training.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of training before a kill, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        options = (*SIZES, "--steps", str(arguments.steps), "--data", str(_text(folder)))
        whole, killed = folder / "whole", folder / "killed"
        _finish(whole, options)
        moments = [random.Random(arguments.seed + i).uniform(0, arguments.longest) for i in range(arguments.kills)]
        _kill_often(killed, options, moments)
        _finish(killed, () if (killed / "settings.json").exists() else options)
        sys.exit(0 if _compare(whole, killed) else 1)


def _text(folder: Path) -> Path:
    """Sentences that have something to learn."""
    rng = random.Random(0)
    kinds = [["the", "a", "every"], ["dog", "cat", "man", "bird"], ["sees", "eats", "likes"], ["and", "but"]]
    lines = (" ".join(rng.choice(kinds[i % 4]) for i in range(rng.randint(1, 15))) for _ in range(300))
    path = folder / "text.txt"
    path.write_text("\n".join(lines))
    return path


def _start(folder: Path, options: tuple[str, ...]) -> subprocess.Popen[str]:
    """A process that trains a new run, or, without options, goes on with one."""
    fixed = ("train", "--no-report", "--device", "cpu", "--output", str(folder))
    command = [sys.executable, "-m", "tailsum_studies.cli", *fixed, *(options or ("--resume",))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)  # noqa: S603  (our own)


def _finish(folder: Path, options: tuple[str, ...]) -> None:
    with _start(folder, options) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        sys.exit(f"a process that was left alone ended with {process.returncode}:\n{said}")


def _kill_often(folder: Path, options: tuple[str, ...], moments: list[float]) -> None:
    """Kill a process after each moment of training, in seconds, and start the next."""
    print(f"{'kill':>4}  {'after':>8}  {'begun at':>8}  {'killed at':>9}  {'goes on from':>12}", flush=True)
    for number, moment in enumerate(moments, 1):
        resumed = (folder / "settings.json").exists()
        begun = _saved(folder)
        with _start(folder, () if resumed else options) as process:
            try:
                _wait_until_training(folder, process)
                time.sleep(moment)
            finally:
                process.kill()
        if process.returncode != -9:
            print(f"{number:4d}  the run was finished before: use more --steps")
            return
        rows = [row for row in Run.open(folder).losses() if row["part"] == "train"]
        print(f"{number:4d}  {moment:6.3f} s  {begun:8d}  {len(rows):9d}  {_saved(folder):12d}", flush=True)


def _saved(folder: Path) -> int:
    """The step that a next process goes on from."""
    found = Keeper(folder / "checkpoints").latest(lambda text: print(f"      {text}"))
    return 0 if found is None else found.facts["step"]


def _wait_until_training(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the process has read the checkpoint: then it makes the file of losses anew."""
    curve = folder / "losses.csv"
    before = curve.stat().st_ino if curve.exists() else None
    give_up = time.monotonic() + LIMIT
    while not curve.exists() or curve.stat().st_ino == before:
        if process.poll() is not None or time.monotonic() > give_up:
            sys.exit(f"a process never came to train: {process.stdout.read() if process.stdout else ''}")
        time.sleep(0.001)


def _compare(whole: Path, killed: Path) -> bool:
    """Print both ends, and whether they are equal to the bit."""
    print(f"\n{'at the end':<23}  {'uninterrupted':>22}  {'killed':>22}  equal")
    equal = []
    for name, part in (("train loss, nats a word", "train"), ("dev NLL, nats a word", "dev")):
        one, other = (
            [row for row in Run.open(folder).losses() if row["part"] == part][-1] for folder in (whole, killed)
        )
        equal.append(one == other)
        print(f"{name:<23}  {one['nll']:>22}  {other['nll']:>22}  {_yes(equal[-1])}")
    equal.append((whole / "losses.csv").read_bytes() == (killed / "losses.csv").read_bytes())
    print(f"all losses, byte for byte: {_yes(equal[-1])}")
    for name, file in (("last", LAST), ("best", BEST)):
        one, other = (read(folder / "checkpoints" / file) for folder in (whole, killed))
        equal.append(_same(one, other))
        print(f"all {len(one.tensors)} tensors of weights and optimiser, {name} checkpoint: {_yes(equal[-1])}")
    return all(equal)


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    named = one.tensors.keys() == other.tensors.keys() and one.facts == other.facts
    return named and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def _yes(equal: bool) -> str:
    return "yes" if equal else "NO"


if __name__ == "__main__":
    main()
