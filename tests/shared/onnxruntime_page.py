"""docs/onnxruntime-api.md: each name of onnxruntime's interface, made from ``trnrt.ort.table``."""

from __future__ import annotations

from collections import Counter

from trnrt.ort.table import ABSENT_ERRORS, ERRORS, MODULE, TABLE, VERSION, Entry, Status

_INTRO = f"""# onnxruntime's interface

A script for onnxruntime changes one import:

```python
import numpy as np

import trnrt as ort  # was: import onnxruntime as ort

images = np.zeros((1, 1, 8, 8), np.float32)
session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
outputs = session.run(None, {{"image": images}})
```

It then computes on a NeuronCore if this machine has one, else on the simulator. `from trnrt import InferenceSession,
SessionOptions` works, too. The tables below have every public name of onnxruntime {VERSION}. This page is generated
from `trnrt/ort/table.py`, which a test compares with the installed onnxruntime.

- **works**: does what it does in onnxruntime, or what it means here.
- **ignored**: means nothing here. It is accepted with one warning in a process for each name, a
  `trnrt.errors.InterfaceWarning`. Options of a session warn when a session is made with them, and only if they differ
  from the default.
- **refused**: can't be done here. Any use raises `trnrt.errors.NotSupportedError`, which says why. It is an
  AttributeError, too, so `hasattr` is False.
- **internal**: no part of the interface; trnrt does not have it.
"""

_MORE = """## More that a session takes

- A model: a path (`str` or `pathlib.Path`), a file's content, a `ModelProto`, or a model of onnx_ir. A ModelProto whose
  weights are in other files has to be given by its path.
- `dtype`: "bfloat16" or "bf16", "float16" or "fp16", "float32" or "fp32", or a dtype of numpy, ml_dtypes or torch. A
  session for onnxruntime has no such argument: without it, trnrt computes in float32.
- `target`: "trn1", "trn2" or "trn3", in any case.
- `with InferenceSession(...) as session:` releases compiled programs and their device slots at its end.
- `repr(session)` is one line. A notebook shows the plan, the predicted latency and the timeline.

## Providers

`get_available_providers()` has `TrnrtNeuronExecutionProvider` on a machine with a NeuronCore,
`TrnrtSimulatorExecutionProvider`, and `CPUExecutionProvider`. The last is onnxruntime's, and computes nothing unless
the session has `fallback="onnxruntime"`. A provider of trnrt's own in `providers` chooses the backend, and may have the
options `target`, `dtype` and `fallback`; others' names are ignored:

    ort.InferenceSession("model.onnx", providers=[("TrnrtSimulatorExecutionProvider", {"dtype": "bf16"})])

## Memory

All values are in the host's memory: `OrtValue` and `IOBinding` share it with numpy, as onnxruntime's do for "cpu".
Other devices' names are ignored. `bind_input` and `bind_output` refuse an address on another device.

## Profiles

With `SessionOptions.enable_profiling`, `end_profiling` writes `PREFIX_DATE.json`, a list of trace events for Perfetto
(ui.perfetto.dev) and for scripts that read onnxruntime's. Events of the category `Session` are wall-clock times:
`session_initialization` and each `model_run`. Events of the category `Node` are the steps of a plan, with their
*predicted* times on the device, one after the other from the start of their run; `args` has `op_name`, `provider` and
the ONNX `nodes`. The timeline of the last run's kernels follows, with each core as a process.

"""

_ERRORS = """## Errors

trnrt raises its own errors, which are all `trnrt.errors.TrnrtError`, with a `hint` that says what to do. Code that
catches onnxruntime's by name keeps working: `trnrt.capi.onnxruntime_pybind11_state` has the names below, each as the
class that trnrt raises in its place. One class may stand for several names, so put the most special one first, as in
onnxruntime. onnxruntime raises ValueError for a missing input, where trnrt raises InputError.

| onnxruntime | trnrt |
|---|---|
"""

_HEADINGS = {MODULE: "The module"}


def onnxruntime_page() -> str:
    """The page in Markdown."""
    parts = [_INTRO, "\n", _counts(), "\n", _MORE.rstrip(), "\n\n", _ERRORS]
    parts += [f"| {name} | {error} |\n" for name, error in ERRORS.items()]
    parts.append(f"\nNothing raises {', '.join(ABSENT_ERRORS)}.\n")
    for owner, entries in TABLE.items():
        parts.append(f"\n## {_HEADINGS.get(owner, owner)}\n\n| name | here | |\n|---|---|---|\n")
        parts += [_row(name, entry) for name, entry in sorted(entries.items(), key=_order)]
    return "".join(parts)


def _counts() -> str:
    counts = Counter(entry.status for entries in TABLE.values() for entry in entries.values())
    found = ", ".join(f"{counts[status]} {status.value}" for status in Status)
    return f"Of {sum(counts.values())} names: {found}.\n"


def _order(item: tuple[str, Entry]) -> tuple[int, str]:
    return list(Status).index(item[1].status), item[0]


def _row(name: str, entry: Entry) -> str:
    return f"| `{name}` | {entry.status.value} | {entry.note} |\n"
