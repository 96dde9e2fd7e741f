"""Configurations to and from the formats of treebanks and taggers: CoNLL, brackets, `nltk` trees, spans, BIO tags; automata.

Every function takes or returns one sentence; `stack` makes a batch. Positions are numbered from 0, and spans include their
first and last position. Labels are names here and numbers in configurations: number i has the name `names[i]`.
"""

from tailsum.formats.automata import Automaton, parse_k2, parse_openfst, stack_automata, write_k2, write_openfst
from tailsum.formats.brackets import Node, label_names, parse_brackets
from tailsum.formats.conll import Sentence, parse_conll, write_conll
from tailsum.formats.spans import Span, segments_to_spans, spans_to_segments, spans_to_tags, tags_to_spans
from tailsum.formats.stack import stack

__all__ = [
    "Automaton",
    "Node",
    "Sentence",
    "Span",
    "label_names",
    "parse_brackets",
    "parse_conll",
    "parse_k2",
    "parse_openfst",
    "segments_to_spans",
    "spans_to_segments",
    "spans_to_tags",
    "stack",
    "stack_automata",
    "tags_to_spans",
    "write_conll",
    "write_k2",
    "write_openfst",
]
