"""The page about a run: what the model has learned, in one file that opens in any browser."""

from pathlib import Path

from tailsum.apps.report.page import write
from tailsum.apps.report.picture import save
from tailsum.apps.vae.report.figures import pictures
from tailsum.apps.vae.report.findings import Findings
from tailsum.apps.vae.report.page import content

__all__ = ["Findings", "write_page"]


def write_page(folder: Path, findings: Findings) -> Path:
    """Write `index.html` and, in `plots`, its pictures; gives the page's path."""
    shots = [save(picture, folder / "plots") for picture in pictures(findings)]
    drawn = {shot.section for shot in shots}
    return write(folder / "index.html", "vae.html", **content(findings, drawn), shots=shots)
