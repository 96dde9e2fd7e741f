"""What is done with `tailsum` by its public names: the command line, the demonstration, the paper's experiments, a structured VAE."""

__version__ = "0.1.0"
