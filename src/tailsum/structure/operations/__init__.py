"""What users call on a structure, by kind: each file has a base class of `Structure` with a few operations.

Operations stand beside the methods `for_authors` that they rest on, which a structure may override by faster ones.
"""
