"""The names of the ways to sum over the states in training, in a file that does not load torch, for the command line."""

from typing import Literal

Method = Literal["full", "topk", "rdp", "tailsum"]
