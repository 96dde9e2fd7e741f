"""Words missing from sentences, restored together: a chain over the whole vocabulary that only a sketch can train."""
