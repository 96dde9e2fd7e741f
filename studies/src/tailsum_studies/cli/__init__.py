"""The command line: `tailsum`, or `python -m tailsum_studies.cli`. A file a command; none of them loads torch for its `--help`."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the imports below take a while
        signal.signal(number, _stop_at_once)
    from tailsum_studies.cli.app import app

    try:
        app(prog_name="tailsum")
    except KeyboardInterrupt:
        sys.exit(130)


def _stop_at_once(number: int, _: FrameType | None) -> None:
    """For the time of imports and preparations, when there is nothing to save, and an exception may be caught anywhere."""
    os.write(sys.stdout.fileno(), b"Stopped.\n")
    os._exit(128 + number)
