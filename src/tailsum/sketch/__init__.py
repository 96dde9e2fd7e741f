"""Sketches: which states matter (proposals), which are kept (selections), and how far estimates scatter."""
