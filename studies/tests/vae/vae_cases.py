"""Small runs of the structured VAE to train, to stop, to kill and to compare."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time

import torch

from tailsum_studies.vae.checkpoint import BEST, LAST, read
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.processes import Processes
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Trainer, Watcher, train

CPU = torch.device("cpu")
STEPS = 12
SMALL = {
    "states": 20,
    "size": 8,
    "state_size": 4,
    "hidden": 8,
    "longest": 7,
    "words": 60,
    "steps": STEPS,
    "batch": 8,
    "check_every": 4,
    "dropout": 0.3,
    "word_dropout": 0.3,
    "rate": 0.02,
}
LONG = {"steps": 30, "check_every": 3, "batch": 24}


def text(folder):
    """A file of 300 sentences that have something to learn: words of one kind follow those of another."""
    rng = random.Random(0)
    kinds = [["the", "a", "every", "no"], ["dog", "cat", "man", "bird", "house"], ["sees", "eats", "has", "likes"]]
    kinds += [["often", "never"], ["and", "but"]]
    lines = [" ".join(rng.choice(kinds[i % 5]) for i in range(rng.randint(1, 6))) + "." for _ in range(300)]
    path = folder / "text.txt"
    path.write_text("\n".join(lines))
    return path


def new_run(folder, data, **how):
    """A run that was begun and has not made a step."""
    settings = Settings(**{**SMALL, "data": str(data), **how})
    return Run.new(folder, settings, Corpus.read(data, settings.words, longest=settings.longest)).write()


def fresh(folder):
    """A trainer as a new process makes it, whatever the random state; it is not yet where the checkpoint is."""
    torch.manual_seed(time.time_ns() % 2**32)
    run = Run.open(folder)
    return Trainer(run, run.corpus(), CPU, Processes())


def go_on(folder, stop=None, **watch):
    """Train on in a fresh trainer, until the end or until `stop` says so of the trainer."""
    trainer = fresh(folder)
    watcher = Watcher(**watch, stop=lambda: stop is not None and stop(trainer))
    return trainer, train(trainer, watcher)


def trained(folder, data, **how):
    """A new run, trained to the end without a stop."""
    new_run(folder, data, **how)
    trainer, done = go_on(folder)
    assert done
    return trainer


def checkpoint(folder, name=LAST):
    return read(folder / "checkpoints" / name)


def step_of(folder, name=LAST):
    return checkpoint(folder, name).facts["step"]


def same_tensors(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def same_run(found, wanted):
    """Two folders agree to the last bit: the curve, and the weights, optimiser and facts of the checkpoints."""
    assert (found / "losses.csv").read_bytes() == (wanted / "losses.csv").read_bytes()
    for name in (LAST, BEST):
        one, other = checkpoint(found, name), checkpoint(wanted, name)
        assert one.facts == other.facts
        same_tensors(one.tensors, other.tensors)
        assert any(part.startswith("optimiser.") for part in one.tensors)


def rows(folder, part="train"):
    return [row for row in Run.open(folder).losses() if row["part"] == part]


# Damage to a file.


def cut(path, _):
    path.write_bytes(path.read_bytes()[:-20])


def flip(path, _):
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def replace(path, other):
    shutil.copy(other, path)


# Commands, as people run them.


def output_of(*arguments):
    """A command in this process: its exit code and what it says, on both streams."""
    from typer.testing import CliRunner  # noqa: PLC0415  (an extra)

    from tailsum_studies.cli.app import app  # noqa: PLC0415  (as above)

    result = CliRunner().invoke(app, [str(x) for x in arguments], env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def output_of_train(folder, *more):
    return output_of("train", "--no-report", "--device", "cpu", "--output", folder, *more)


def options(data, **how):
    """Settings as options of `tailsum train`."""
    found = {**SMALL, "data": str(data), **how}
    named = {name.replace("_", "-"): value for name, value in found.items() if name != "hard"}
    switch = [] if found.get("hard", True) else ["--soft"]
    return ["--device", "cpu", *switch, *(str(x) for name, value in named.items() for x in (f"--{name}", value))]


def command(*arguments, torchrun=0):
    """The command line of a process of its own, or of several under torchrun."""
    several = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun), "-m"] if torchrun else []
    return [sys.executable, "-m", *several, "tailsum_studies.cli", *map(str, arguments)]


def alone():
    """The environment of a process with one thread, which gives the same bits as one thread here."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


def run(*arguments, torchrun=0):
    how = {"capture_output": True, "text": True, "timeout": 120, "env": alone()}
    return subprocess.run(command(*arguments, torchrun=torchrun), check=False, **how)


@contextlib.contextmanager
def started(*arguments):
    """A process that is at work; it is gone afterwards."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command(*arguments), **pipes, env=alone()) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_step(process, folder, step, before=None):
    """Wait until a process has written a step to the curve, and not one before it: `before` is the curve's old state."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and process.poll() is None:
        if curve_state(folder) != before and len(lines := _lines(folder)) > 1 and int(lines[-1].split(",")[0]) >= step:
            return
        time.sleep(0.001)
    raise AssertionError(f"step {step} never came: {process.stdout.read() if process.poll() is not None else ''}")


def curve_state(folder):
    """What changes when a process starts to train: the file is made anew."""
    path = folder / "losses.csv"
    return path.stat().st_ino if path.exists() else None


def _lines(folder):
    with contextlib.suppress(FileNotFoundError):
        return [line for line in (folder / "losses.csv").read_text().splitlines() if line.count(",") == 5]
    return []
