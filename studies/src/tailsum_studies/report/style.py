"""Colours and sizes of letters that all pictures of the reports share."""

INK, QUIET, LINE = "#1F2328", "#6B7380", "#8C95A1"
WORD, SMALL = 11.0, 8.5  # font sizes
