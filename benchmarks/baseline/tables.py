"""The table: for a terminal, as JSON, and as the Markdown page of the repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.baseline.counts import counts_of
from benchmarks.baseline.library import COMMIT, Library
from benchmarks.baseline.networks import BY_NAME, NETWORKS
from benchmarks.baseline.timing import Range

SCHEMA_VERSION = 1
CLOCK = "benchmark"
HEADINGS = ("target", "dtype", "low", "headline", "high", "what makes the range", f"{COMMIT} said")

KINDS = {"network": "network, batch 1", "lab": "lab", "lab elsewhere": "lab, on the other target"}
"""The kinds of cases, and the heading of each kind's table."""


@dataclass(frozen=True)
class Row:
    """A case under the present model, microseconds. ``modules``: the SHA-256 of each timed kernel module.

    ``low_us``, ``headline_us`` and ``high_us`` predict a benchmark's figure, ``profiler_us`` a profiler's; ``old_us``
    is the benchmark's figure by the commit's own model. ``refused``: why the commit's planner doesn't put the whole
    model on the device; ``on_cpu``: the nodes that it leaves to the CPU.
    """

    kind: str
    name: str
    target: str
    dtype: str
    low_us: float
    headline_us: float
    high_us: float
    cause: str
    clock: str
    profiler_us: float
    old_us: float
    modules: dict[str, str]
    refused: list[str]
    on_cpu: list[str]

    @classmethod
    def of(cls, library: Library, case: dict[str, Any], found: Range, profiler_us: float) -> Row:
        """The row of a timed case."""
        return cls(
            **{name: case[name] for name in ("kind", "name", "target", "dtype", "refused", "on_cpu")},
            low_us=found.low,
            headline_us=found.headline,
            high_us=found.high,
            cause=found.cause,
            clock=CLOCK,
            profiler_us=profiler_us,
            old_us=sum(part["old_us"][CLOCK] for part in case["parts"]) + case["crossings_us"],
            modules={part["module"]: library.sha256(part["module"]) for part in case["parts"]},
        )

    @property
    def title(self) -> str:
        """The name that a reader knows."""
        return BY_NAME[self.name].title if self.kind == "network" else self.name

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, without the title."""
        figures = [f"{us:,.1f}" for us in (self.low_us, self.headline_us, self.high_us)]
        return self.target, self.dtype, *figures, self.cause or "-", f"{self.old_us:,.1f}"


def document(library: Library, rows: Sequence[Row]) -> dict[str, Any]:
    """The table as JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "commit": COMMIT,
        "kernels_sha256": library.kernels_sha256,
        "rows": [asdict(row) for row in rows],
    }


def parts(rows: Sequence[Row]) -> list[Table | str]:
    """The tables for a terminal, with a legend of the columns."""
    shown: list[Table | str] = []
    for kind, heading in KINDS.items():
        chosen = [row for row in rows if row.kind == kind]
        if not chosen:
            continue
        table = Table(box=None, pad_edge=False)
        for name in (heading, *HEADINGS):
            table.add_column(name, justify="right" if name in ("low", "headline", "high", HEADINGS[-1]) else "left")
        for row in chosen:
            table.add_row(row.title, *row.cells)
        shown += [table, ""]
    return [*shown, _COLUMNS]


_COLUMNS = f"microseconds, as a benchmark would measure them; the last column is what {COMMIT}'s own model said"


def markdown(rows: Sequence[Row]) -> str:
    """The page in the repository."""
    networks, labs, elsewhere = ([row for row in rows if row.kind == kind] for kind in KINDS)
    return (
        "\n\n".join(
            [
                f"# The kernels of {COMMIT} under the present timing model",
                _ABOUT,
                "## Networks, batch 1",
                _rows_grid("network", networks),
                _leftovers_text(networks),
                "## The labs' cases",
                _LABS,
                _rows_grid("case", labs),
                "The same cases on the target that the lab is not about:",
                _rows_grid("case", elsewhere),
                "## The networks' sizes",
                _SIZES,
                _grid(_SIZE_HEADINGS, [_size(name) for name in BY_NAME]),
            ]
        )
        + "\n"
    )


_ABOUT = f"""Made by `python -m benchmarks.baseline --write`; do not edit it. It is what later changes of kernels
and of the planner are compared with: the kernel modules are those that commit {COMMIT} planned (effort 1), the times
are those of the present model. `kernels_{COMMIT}.tar.xz` holds the modules and the kernels that they import;
`make_kernels` makes it anew from a checkout of the commit. Microseconds, as a benchmark of many runs would measure
them; the last column is what the commit's own model said. `table.json` has the same rows, with each module's digest."""

_LABS = "What `python -m benchmarks.labs` times, with the commit's kernels."

_SIZES = """Parameters are counted in the ONNX models (of ResNets with the scales that folding took away),
multiplications from their shapes."""

_SIZE_HEADINGS = ("network", "parameters", "published", "10^9 multiplications", "published", "by")


def _size(name: str) -> tuple[str, ...]:
    network = BY_NAME[name]
    found = counts_of(network.build())
    counted = (f"{found.parameters + network.folded:,}", f"{network.parameters:,}")
    published = f"{network.published} / 2" if network.counted == 2 else network.published
    products = f"{found.multiplications / 1e9:.3f}", published or "-"
    return network.title, *counted, *products, network.source


def _leftovers_text(rows: Sequence[Row]) -> str:
    """A line for each network that the commit's planner runs partly on the CPU."""
    told = [f"- {row.title}, {row.target}: on the CPU are {', '.join(row.on_cpu)}" for row in rows if row.on_cpu]
    if not told:
        return f"{COMMIT} plans all {len(NETWORKS)} networks whole: no node is left to the CPU."
    return "\n".join(told)


def _rows_grid(heading: str, rows: Sequence[Row]) -> str:
    return _grid((heading, *HEADINGS), [(row.title, *row.cells) for row in rows])


def _grid(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *lines))
