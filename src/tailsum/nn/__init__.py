"""Modules for your own networks."""
