"""Speed, memory and accuracy, measured: `python -m benchmarks`. Every figure stands behind a check of the result."""
