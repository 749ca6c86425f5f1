"""Clean-up rules of our own for what exporters emit: one file a subject, each with a function from Editor to notes.

A rule must keep every answer, NaN and infinity included; where it only nearly does, its comment says why that is
acceptable. Each note names the nodes that it is about. ``rewriting.py`` calls the rules in turn until none has more.
"""
