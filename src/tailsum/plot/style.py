"""Colours and sizes shared by all pictures."""

from matplotlib.colors import to_hex, to_rgb

# Paul Tol's light palette: distinct for colour-blind eyes, and black text is legible on each.
PALETTE = ("#77AADD", "#EE8866", "#44BB99", "#EEDD88", "#FFAABB", "#BBCC33", "#99DDFF", "#CCCCCC")
INK, QUIET, LINE = "#1F2328", "#6B7380", "#8C95A1"
WORD, NAME, SMALL = 11.0, 9.5, 8.5  # font sizes
PILL = 16.0  # the height of a state's name with its background
MARGIN = 10.0


def state_colour(state: int) -> str:
    """The state's colour: beyond the palette, lighter tints of it."""
    tint = (0.1, 0.4, 0.6)[state // len(PALETTE) % 3]
    red, green, blue = ((1 - tint) * part + tint for part in to_rgb(PALETTE[state % len(PALETTE)]))
    return to_hex((red, green, blue))
