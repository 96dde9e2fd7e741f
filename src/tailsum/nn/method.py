"""The names of the ways to sum over the states in training; apart, so that the command line need not load torch."""

from typing import Literal

Method = Literal["full", "topk", "rdp", "tailsum"]
