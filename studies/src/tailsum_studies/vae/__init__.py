"""`tailsum train`, `evaluate` and `explore`: training, judging and showing a structured VAE."""
