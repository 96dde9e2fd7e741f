"""The models that the paper's tables are measured on, and a harder suite."""
