"""`tailsum explore`."""

from tailsum.cli.console import Device, RunFolder, Text, need, told


def explore(run: RunFolder, data: Text = None, device: Device = None) -> None:
    """One page about what a run has learned: its states, their words and contexts, transitions, sentences of its own."""
    need("plot", "report", "vae")
    from tailsum.apps.vae.session import explore_run

    with told() as console:
        explore_run(run, console, device, data)
