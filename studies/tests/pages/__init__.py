"""How tests read written pages: their outline, and how they look in a browser."""
