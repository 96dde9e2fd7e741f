"""The base of every structure, and the checks of their arguments."""
