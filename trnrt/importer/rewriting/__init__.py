"""trnrt's own clean-up rules for exported graphs: one file per subject, each with a function from Editor to notes.

A rule must keep every result, NaN and infinity included; if it rounds differently, its comment says why that is
acceptable. Each note names its nodes. ``rules.py`` calls the rules in turn until none changes anything.
"""
