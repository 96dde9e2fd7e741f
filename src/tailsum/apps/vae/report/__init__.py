"""The page about a run: what the model has learned, in one file that opens in any browser."""

from pathlib import Path

from tailsum.apps.files import whole
from tailsum.apps.report.picture import save
from tailsum.apps.vae.report.figures import pictures
from tailsum.apps.vae.report.findings import Findings
from tailsum.apps.vae.report.page import page

__all__ = ["Findings", "write_page"]


def write_page(folder: Path, findings: Findings) -> Path:
    """Write `index.html` and, in `plots`, its pictures; gives the page's path."""
    shots = [(picture, save(picture, folder / "plots").read_bytes()) for picture in pictures(findings)]
    path = folder / "index.html"
    with whole(path) as file:
        file.write(page(findings, shots))
    return path
