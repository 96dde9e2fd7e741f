"""The hot loops: sums over paths, written once and differentiable any number of times."""
