"""Semirings: what a dynamic program computes, named as in torch-struct."""
