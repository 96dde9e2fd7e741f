"""The operations of structures, by kind: each file has a base class of `Structure` with a few of them.

It also has the methods `for_authors` that these operations use, which a structure may override by faster ones.
"""
