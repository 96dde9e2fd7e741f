"""The command line, the demonstration, the experiments of the paper and a structured VAE, by the public names of `tailsum`."""

__version__ = "0.1.0"
