"""The same kernel module with one function per step, so that a profiler's call stacks distinguish the steps.

Neuron Explorer identifies an instruction by the line of its NKI call, which is in ``kernels/``, and by the functions on
its call stack, each with the line of its definition (its table KernelStackFrames). Steps that share a kernel differ in
neither, until each calls it from a function of its own.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from trnrt.planner.plan import Plan, StepReport
from trnrt.planner.steps import NO_CALL


def split_functions(plan: Plan) -> Plan:
    """The plan with such a module; it computes the same with the same instructions. ``lines`` of its steps are new.

    Tensors that a step's call reads become arguments of its function; constants stay in the call.
    """
    tree = ast.parse(plan.source)
    entry = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == plan.entry)
    calls = {node.lineno: node for node in ast.walk(entry) if isinstance(node, ast.Expr)}
    lines, functions = plan.source.splitlines(), list[str]()
    steps = list(plan.steps)
    for number in reversed(range(len(steps))):  # from the end: lines before it stay where they are
        first, last = steps[number].lines
        if first not in calls:  # nothing is called
            continue
        name = _free_name(plan.source, number)
        function, call = _split([calls[line] for line in range(first, last + 1) if line in calls], name)
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        lines[first - 1 : last] = [indent + call]
        functions = [*function, "", "", *functions]
        for later in range(number + 1, len(steps)):
            steps[later] = _shift_lines(steps[later], first - last)
        steps[number] = replace(steps[number], lines=(first, first))
    at = entry.decorator_list[0].lineno - 1
    source = "\n".join([*lines[:at], *functions, *lines[at:]]) + "\n"
    return replace(plan, source=source, steps=tuple(_shift_lines(step, len(functions)) for step in steps))


def function_lines(plan: Plan) -> list[tuple[int, int]]:
    """The first and last line of each step's function, (1, 0) for a step that calls nothing; empty for a module without
    them."""
    functions = [node for node in ast.parse(plan.source).body if isinstance(node, ast.FunctionDef)]
    spans = iter([(node.lineno, node.end_lineno or node.lineno) for node in functions if node.name != plan.entry])
    called = [step.kernel != NO_CALL.kernel for step in plan.steps]
    if len(functions) - 1 != sum(called):
        return []
    return [next(spans) if calls else (1, 0) for calls in called]


def _free_name(source: str, number: int) -> str:
    name = f"step_{number}"
    while name in source:
        name += "_"
    return name


def _split(statements: list[ast.Expr], name: str) -> tuple[list[str], str]:
    """A function around a step's calls (the kernel's, and that which exchanges its result between cores), and the call
    of that function."""
    given: list[str] = []

    def argument(value: ast.expr) -> str:
        text = ast.unparse(value)
        if not any(isinstance(node, ast.Name) for node in ast.walk(value)):
            return text
        if isinstance(value, ast.Tuple):
            inner = [argument(element) for element in value.elts]
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        given.append(text)
        return f"a{len(given) - 1}"

    body = []
    for statement in statements:
        call = statement.value
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        arguments = [argument(value) for value in call.args]
        arguments += [f"{keyword.arg}={argument(keyword.value)}" for keyword in call.keywords]
        body.append(f"    {call.func.id}({', '.join(arguments)})")
    parameters = ", ".join(f"a{k}" for k in range(len(given)))
    return [f"def {name}({parameters}):", *body], f"{name}({', '.join(given)})"


def _shift_lines(step: StepReport, by: int) -> StepReport:
    return replace(step, lines=(step.lines[0] + by, step.lines[1] + by))
