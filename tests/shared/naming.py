"""Functions whose name is a participle or a preposition alone: neither a verb nor the noun that they return.

``python tests/shared/naming.py`` prints them with their files and lines, and how many there are.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("trnrt", "kernels", "serve", "models", "benchmarks")
# Verbs whose participle does not end in -ed. Those that are verbs or nouns, too (read, cut, set, run), do not count.
IRREGULAR = frozenset(
    """begun bound broken brought built chosen come done drawn fallen found given gone got heard held
    hidden kept known laid left lent lost made meant met paid said seen sent shown sought spent
    spoken stood taken taught thought told understood won worn written""".split()  # noqa: SIM905
)
PREPOSITIONS = frozenset(
    """about above across after against along amid among around as at before behind below beneath beside
    between beyond by down for from in inside into of off on onto out outside over past per since
    through to toward under until unlike up upon via with within without""".split()  # noqa: SIM905
)
# They end in -ed, and are verbs or nouns.
OTHERS = frozenset(
    """bed feed need seed shed speed embed exceed proceed succeed""".split()  # noqa: SIM905
)


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith("ed") and word not in OTHERS)


def is_bare(name: str) -> bool:
    """Whether all words of a name are participles, prepositions or adverbs that lean on them."""
    words = [word for word in name.strip("_").split("_") if word]
    return bool(words) and (
        (len(words) == 1 and (is_participle(words[0]) or words[0] in PREPOSITIONS))
        or (len(words) > 1 and all(is_participle(w) or w in PREPOSITIONS for w in words))
    )


def bare_names(root: Path = ROOT) -> Iterator[tuple[str, int, str]]:
    """(file, line, name) of every such function."""
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            if path.resolve() != path:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_bare(node.name):
                    yield str(path.relative_to(root)), node.lineno, node.name


if __name__ == "__main__":
    found = list(bare_names(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
    for file, line, name in found:
        print(f"{file}:{line} {name}")
    print(len(found))
