"""Functions that a ported file defines at its top, where it uses them."""

from __future__ import annotations

import re

from trnrt.nki.porting.imports import find_import_lines
from trnrt.nki.porting.scope import File

_SPREAD = '''def {name}(x, y):
    """x with its dimensions of size 1 repeated to the sizes of y: the old namespace did so by itself."""
    for _ in range(len(y.shape) - len(x.shape)):
        x = x.expand_dim(1)
    if x.shape[0] == 1 and y.shape[0] != 1:
        x = {nl}.broadcast_to(x, (y.shape[0],) + x.shape[1:])
    for dim in range(1, len(y.shape)):
        if x.shape[dim] == 1 and y.shape[dim] != 1:
            x = x.broadcast(dim, y.shape[dim])
    return x
'''
_HELPERS = {"spread": _SPREAD}


def define_helpers(text: str, file: File) -> str:
    """The file with the helpers that it calls, after its imports."""
    used = {name: own for name, own in sorted(file.helpers.items()) if re.search(rf"\b{own}\(", text)}
    if not used:
        return text
    alias = file.spell("nki.language.x").rpartition(".")[0]
    lines = text.split("\n")
    at = max((last for _, last in find_import_lines(text)), default=0)
    helpers = "\n\n".join(_HELPERS[name].format(name=own, nl=alias) for name, own in used.items()).rstrip("\n")
    rest = lines[at:]
    while rest and not rest[0].strip():
        rest.pop(0)
    return "\n".join([*lines[:at], "", "", helpers, "", "", *rest])
