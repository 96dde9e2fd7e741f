"""Interfaces of other libraries, on tailsum's structures: code written for them runs with another import."""

from tailsum.compat import torch_struct as torch_struct
