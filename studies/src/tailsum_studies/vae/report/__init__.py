"""The page about a run: what the model has learned, in one file that opens in any browser."""

from tailsum_studies.vae.report.findings import Findings
from tailsum_studies.vae.report.page import write_page

__all__ = ["Findings", "write_page"]
