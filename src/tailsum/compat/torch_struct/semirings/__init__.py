"""Semirings, which decide what a dynamic program computes, named as in torch-struct."""
