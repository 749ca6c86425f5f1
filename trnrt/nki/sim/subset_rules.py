"""The Python that the NKI compiler refuses: one table, walked by the check and by its tests.

Most rows hold at language level 0.6 only: NKI 0.7 runs a kernel as Python ("NKI specialization change", SDK 2.33.0),
and what it can't do shows when the kernel is traced. For 0.6, two front ends are public: the one of SDK 2.32, through
its guides, and KLR's, through its source. A kernel has to satisfy both, so there is a row for each construct that one
of them refuses; ``source`` says which. Constructs that SDK 2.32's own kernel library uses throughout are accepted even
if a page says otherwise, and the row says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.nki.level import Level
from trnrt.nki.sim import subset_find as at
from trnrt.nki.sim.subset_find import Find
from trnrt.nki.sim.subset_methods import METHODS, missing_method

# KLR, github.com/leanprover/KLR at 7ccd18c (2026-03).
GATHER = "KLR interop/klr/gather.c"
SIMPLIFY = "KLR KLR/NKI/Simplify.lean"
TRACE = "KLR KLR/Trace/NKI.lean"
PYTHON = "KLR KLR/Trace/Python.lean"
TERM = "KLR KLR/Trace/Term.lean"
# SDK 2.32.
GUIDE = "SDK nki/get-started/nki-language-guide.rst"
MIGRATION = "SDK nki/migration/index.rst"
LOOPS = "SDK nki/deep-dives/nki-dynamic-loops.rst"
# SDK 2.33, as its documentation had it in November 2026.
LOOPS_0_7 = "SDK 2.33 nki/deep-dives/nki-loops"
JIT_0_7 = "SDK 2.33 nki/api/generated/nki.jit"

EVERY_LEVEL = tuple(Level)


@dataclass(frozen=True)
class Rule:
    """One refused construct.

    ``nodes`` are the names of the AST node types to check, ``find`` the places in such a node that break the rule.
    ``message`` may have one ``{}`` for ``find``'s detail about the place. ``where`` selects the nodes: those of "code"
    that the compiler evaluates, of a "class" that it uses, of module-level "values" that kernels name, or of the
    "file". The inside of an ``opaque`` construct is not checked: it has to go as a whole. ``levels`` are the language
    levels that refuse it.
    """

    id: str
    nodes: str
    message: str
    instead: str
    source: str
    find: Find = at.always
    where: str = "code"
    opaque: bool = False
    levels: tuple[Level, ...] = (Level.nki_0_6,)


EXPRESSIONS = (
    Rule(
        "comprehension",
        "ListComp SetComp DictComp GeneratorExp",
        "comprehensions and generator expressions are not NKI",
        "Fill a list in a for loop with append()",
        GATHER,
        opaque=True,
    ),
    Rule(
        "lambda",
        "Lambda",
        "lambda is not NKI",
        "Define a function at module level",
        GATHER,
        where="code values",
        opaque=True,
    ),
    Rule(
        "walrus", "NamedExpr", "assignment inside an expression (:=) is not NKI", "Assign on a line of its own", GATHER
    ),
    Rule("yield", "Yield YieldFrom", "generators are not NKI", "Return a list or a tuple", GATHER, opaque=True),
    Rule("set", "Set", "sets are not NKI values", "Write a tuple or a list", f"{GATHER}; {GUIDE}"),
    Rule(
        "starred",
        "Starred",
        "expanding a sequence with * is not NKI",
        "Name the arguments or elements one by one",
        f"{SIMPLIFY}. nki-library expands a tuple of integers once, in host code",
    ),
    Rule(
        "keyword-expansion",
        "Call",
        "expanding a dictionary with ** is not NKI",
        "Name the arguments one by one",
        SIMPLIFY,
        at.keyword_expansions,
    ),
    Rule(
        "is",
        "Compare",
        "'is' and 'is not' compare identity, which the compiler does not have",
        "Write == or !=",
        f"{MIGRATION}, language restrictions of 0.3; {SIMPLIFY} warns. 'x is None' is accepted: Simplify.lean treats it"
        " apart, and nki-library does it throughout",
        at.when(at.identity_not_with_none),
    ),
    Rule(
        "in-chain",
        "Compare",
        "'in' can't be part of a chained comparison",
        "Join two comparisons with 'and'",
        SIMPLIFY,
        at.when(at.chained_membership),
    ),
    Rule(
        "matmul-operator",
        "BinOp AugAssign",
        "the @ operator is not NKI",
        "Call nisa.nc_matmul",
        SIMPLIFY,
        at.when(at.matrix_product),
    ),
    Rule(
        "dict-key",
        "Dict",
        "the keys of a dictionary must be string literals",
        "Write string keys; set computed ones with d[key] = value",
        f"{SIMPLIFY}; {GUIDE}. Dictionaries at module level are left alone: nki-library has dtypes as keys there",
        at.keys_not_strings,
    ),
    Rule(
        "format-spec",
        "FormattedValue",
        "format specifiers in f-strings are not NKI",
        "Write {value} alone",
        GATHER,
        at.when(at.format_spec),
    ),
    Rule(
        "string-operation",
        "Attribute BinOp",
        "strings have neither methods nor the % operator",
        "Write an f-string",
        TERM,
        at.when(at.string_operation),
    ),
    Rule(
        "container-method",
        "Attribute",
        "the parser of NKI 0.6 has no {}",
        "; ".join(f"A {kind} has {', '.join(methods) or 'no methods'}" for kind, methods in METHODS.items()),
        f"{TERM}; {PYTHON}. {GUIDE} shows some of them",
        missing_method,
    ),
    Rule(
        "large-integer",
        "Constant",
        "{} does not fit a signed 32-bit integer",
        "Stay within -2147483647 .. 2147483647, or write a float",
        f"{GATHER}; {GUIDE}, NKI values",
        at.large_integer,
        where="code values",
    ),
    Rule(
        "constant",
        "Constant",
        "a {} literal is not an NKI value",
        "NKI has None, bool, int, float and str",
        f"{GUIDE}, NKI values; {GATHER} turns it into None",
        at.not_a_value,
    ),
    Rule(
        "ellipsis",
        "Constant",
        "'...' is not a value outside of a subscript",
        "Write pass, or None",
        f"{SIMPLIFY}. As a statement it is accepted: {GUIDE}, enumerations",
        at.when(at.stray_ellipsis),
    ),
    Rule(
        "builtin",
        "Name",
        "Python's {} is not one of NKI's built-ins",
        f"NKI has {', '.join(sorted(at.BUILTINS))}",
        f"{PYTHON}. The kernels of the SDK's pages and of nki-library use no other",
        at.other_builtins,
    ),
    Rule(
        "min-max",
        "Call",
        "{}() takes two numbers or one sequence",
        "Nest the calls: min(a, min(b, c))",
        PYTHON,
        at.min_max_arguments,
    ),
    Rule(
        "numpy",
        "Name Attribute",
        "{}: numpy does not exist in a kernel",
        "Use nl and nisa; compute host values, dtypes included, outside of the kernel and pass them in",
        f"{GATHER} skips numpy's functions and types; constants such as numpy.inf are values and pass",
        at.numpy_names,
    ),
    Rule(
        "math",
        "Name Attribute",
        "{} is not one of NKI's math functions",
        f"Write math.x(...), x being one of {', '.join(sorted(at.MATH_FUNCTIONS))}, and import math as a module",
        f"{PYTHON}; {GATHER} finds math functions by their module only",
        at.other_math,
    ),
)

STATEMENTS = (
    Rule("raise", "Raise", "raise is not NKI", "Write assert condition, message", GATHER, opaque=True),
    Rule("try", "Try TryStar", "try is not NKI", "Test for the case with if", GATHER),
    Rule("del", "Delete", "del is not NKI", "Leave the name alone, or use pop() on a container", GATHER, opaque=True),
    Rule("match", "Match", "match is not NKI", "Write if / elif", GATHER),
    Rule("import", "Import ImportFrom", "imports inside a function are not NKI", "Import at module level", GATHER),
    Rule("global", "Global", "global is not NKI", "Pass a dictionary or an NKIObject to share state", GATHER),
    Rule("nonlocal", "Nonlocal", "nonlocal is not NKI", "Pass a dictionary or an NKIObject to share state", GATHER),
    Rule(
        "async",
        "AsyncFunctionDef AsyncFor AsyncWith Await",
        "async and await are not NKI",
        "Write plain functions and loops",
        GATHER,
    ),
    Rule(
        "type-statement",
        "TypeAlias",
        "type statements are not NKI",
        "Declare the type at module level",
        GATHER,
        opaque=True,
    ),
    Rule(
        "nested-class",
        "ClassDef",
        "a class inside a function is not NKI",
        "Define it at module level",
        GATHER,
        opaque=True,
    ),
    Rule(
        "nested-function",
        "FunctionDef",
        "a function inside a function is not NKI",
        "Define it at module level and pass what it needs",
        f"{GATHER}. {MIGRATION} (0.6) writes the bodies of nl.fori_loop and nl.while_loop so: those are accepted",
        at.when(at.nested_function),
    ),
    Rule(
        "for-target",
        "For",
        "a for loop binds one plain name",
        "Bind one name and take it apart in the body",
        SIMPLIFY,
        at.for_target,
    ),
    Rule(
        "loop-else",
        "For While",
        "else after a loop is not NKI",
        "Set a flag in the loop and test it after",
        SIMPLIFY,
        at.loop_else,
    ),
    Rule(
        "assign-target",
        "Assign AnnAssign",
        "only plain names can be targets of unpacking or of a chained assignment",
        "Assign each attribute or element in a statement of its own",
        SIMPLIFY,
        at.assign_targets,
    ),
    Rule(
        "with",
        "With",
        "the only with block is 'with nl.no_reorder():'",
        "Do without the block",
        f"{SIMPLIFY}; {TRACE}; SDK nki/guides/how-to-scheduling-apis.rst",
        at.when(at.other_with),
    ),
    Rule(
        "dynamic-exit",
        "For",
        "{} can't leave a loop that runs on the device",
        "Run the loop to its end",
        TRACE,
        at.exits_of_dynamic_loop,
    ),
    Rule(
        "dynamic-in-order",
        "With",
        "a loop that runs on the device can't stand in a no_reorder block",
        "Put the no_reorder block inside the loop's body",
        f"{LOOPS}; {MIGRATION} (0.6)",
        at.dynamic_loop_in_order,
        levels=EVERY_LEVEL,
    ),
    Rule(
        "fori-return",
        "Call",
        "{}, the body of nl.fori_loop, returns a value",
        "Keep what the loop computes in SBUF or HBM",
        f"{MIGRATION} (0.6)",
        at.loop_body_returns("fori_loop", wants_value=False),
        levels=EVERY_LEVEL,
    ),
    Rule(
        "while-return",
        "Call",
        "{}, the body of nl.while_loop, does not return the next condition",
        "Return the condition's register",
        f"{MIGRATION} (0.6); nl.while_loop in the API reference",
        at.loop_body_returns("while_loop", wants_value=True),
        levels=EVERY_LEVEL,
    ),
    Rule(
        "while-register",
        "While",
        "{} is a register, and NKI 0.7 has no while loop over one",
        "Call nl.while_loop",
        LOOPS_0_7,
        at.while_register,
        levels=(Level.nki_0_7,),
    ),
)

FUNCTIONS = (
    Rule(
        "varargs",
        "FunctionDef",
        "*{}: a variable number of arguments is not NKI",
        "Take a tuple",
        SIMPLIFY,
        at.parameters("vararg"),
    ),
    Rule(
        "kwargs",
        "FunctionDef",
        "**{}: arbitrary keyword arguments are not NKI",
        "Name the parameters",
        f"{SIMPLIFY} warns, and fails when any are passed",
        at.parameters("kwarg"),
    ),
    Rule(
        "bare-star",
        "FunctionDef",
        "the keyword-only separator * (before {}) is not NKI",
        "Remove it, and put parameters with defaults last",
        f"{MIGRATION}, language restrictions of 0.3. KLR accepts it",
        at.parameters("bare star"),
    ),
    Rule(
        "decorator",
        "FunctionDef",
        "@{} is not NKI",
        "Functions take @nki.jit or none, methods @staticmethod or none",
        SIMPLIFY,
        at.other_decorators,
    ),
    Rule(
        "platform-target",
        "FunctionDef",
        "nki.jit has no platform_target any more",
        "Set NEURON_PLATFORM_TARGET_OVERRIDE in the environment",
        f"{MIGRATION} (0.3): passing it is an error",
        at.jit_keywords("platform_target"),
        levels=EVERY_LEVEL,
    ),
    Rule(
        "jit-config",
        "FunctionDef",
        "nki.jit has no {} in NKI 0.6",
        "Leave it out, or ask for level 0.7",
        JIT_0_7,
        at.jit_keywords("compile_config", "specialization_config"),
    ),
    Rule(
        "old-namespace",
        "FunctionDef",
        "{}: the old namespace in a kernel has been an error since NKI 0.4",
        "Import nki, nki.language and nki.isa",
        f"{MIGRATION} (0.4)",
        at.old_namespace,
        levels=EVERY_LEVEL,
    ),
    Rule(
        "closure",
        "Name",
        "{} belongs to the function around the kernel, which the compiler can't see",
        "Pass it as an argument, or bind it at module level",
        f"{GATHER} looks names up in the module and the built-ins only; {GUIDE}, kernel caching",
        at.closure,
    ),
    Rule(
        "module-state",
        "Name Call Attribute Subscript",
        "{} is state of the module: a kernel must depend on its arguments alone",
        "Pass it as an argument, and return what changes",
        f"{GUIDE}, kernel caching; {GATHER}, global",
        at.module_state,
    ),
)

FILE = (
    Rule(
        "list-argument",
        "FunctionDef Call",
        "kernel {} is given a list",
        "Write a tuple",
        f"{MIGRATION}, language restrictions of 0.3. KLR accepts it",
        at.list_arguments,
        where="file",
    ),
)

CLASSES = (
    Rule(
        "class-base",
        "ClassDef",
        "class {} must inherit from NKIObject, or from Enum, and from nothing else",
        "Write class X(nl.NKIObject) or class X(Enum)",
        f"{GUIDE}, class support; {GATHER}; {SIMPLIFY}",
        at.class_bases,
        where="class",
    ),
    Rule(
        "class-keyword",
        "ClassDef",
        "class {} has keywords or type parameters",
        "Leave only the base class",
        GATHER,
        at.class_keywords,
        where="class",
    ),
    Rule(
        "class-body",
        "ClassDef",
        "class {} holds more than fields and methods",
        "Keep to name = value, name: type = value, and def",
        GATHER,
        at.class_body,
        where="class",
    ),
    Rule(
        "class-decorator",
        "ClassDef",
        "@{} is not NKI",
        "A class takes @dataclass or no decorator",
        SIMPLIFY,
        at.class_decorators,
        where="class",
    ),
)

RULES = (*EXPRESSIONS, *STATEMENTS, *FUNCTIONS, *FILE, *CLASSES)
