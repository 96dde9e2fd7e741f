"""`tailsum explore`."""

from tailsum_studies.cli.console import Device, RunFolder, Text, need_vae, reported


def explore(run: RunFolder, data: Text = None, device: Device = None) -> None:
    """One page about what a run has learned: its states, their words and contexts, transitions, sentences of its own."""
    need_vae()
    from tailsum_studies.vae.session import explore_run

    with reported() as console:
        explore_run(run, console, device, data)
