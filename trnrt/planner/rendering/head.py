"""The head of a kernel module: its docstring, its imports, and the signature of its function."""

from __future__ import annotations

from trnrt.planner.naming import printable

LINE_LIMIT = 120
"""The most characters of a line of a module."""


def render_head(
    entry: str, used: set[tuple[str, str]], parameters: list[str], heading: list[str], *, uses_isa: bool
) -> list[str]:
    """The lines before the body: ``heading`` as the docstring, imports of the kernels ``used`` (file, name), and the
    signature of the function ``entry``."""
    imports: dict[str, set[str]] = {}
    for module, kernel in used:
        imports.setdefault(module, set()).add(kernel)
    signature = f"def {entry}({', '.join(parameters)}):"
    if len(signature) > LINE_LIMIT:
        signature = "\n".join([f"def {entry}(", *(f"    {p}," for p in parameters), "):"])
    return [
        '"""' + printable(heading[0], 100).replace('"', "'"),
        "",
        *(printable(line, 110).replace('"', "'") for line in heading[1:]),
        '"""',
        "",
        *(
            f"from trnrt.kernels.{module} import {', '.join(sorted(kernels))}"
            for module, kernels in sorted(imports.items())
        ),
        f"from trnrt.nki import {'nisa, ' * uses_isa}nki, nl",
        "",
        "",
        "@nki.jit",
        *signature.split("\n"),
    ]
