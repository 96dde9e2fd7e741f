"""`tailsum explore`."""

from tailsum_studies.cli.console import Device, RunFolder, Text, need, told


def explore(run: RunFolder, data: Text = None, device: Device = None) -> None:
    """One page about what a run has learned: its states, their words and contexts, transitions, sentences of its own."""
    need("plot", "report", "vae")
    from tailsum_studies.vae.session import explore_run

    with told() as console:
        explore_run(run, console, device, data)
