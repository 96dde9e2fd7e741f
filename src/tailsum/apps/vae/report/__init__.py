"""The page about a run: what the model has learned, in one file that opens in any browser."""

from tailsum.apps.vae.report.findings import Findings
from tailsum.apps.vae.report.page import write_page

__all__ = ["Findings", "write_page"]
