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

## Weights and files

`SessionOptions.add_initializer` and its relatives give values for weights when a session is made. Unlike onnxruntime,
trnrt refuses a name that the model has not, and another dtype or shape. `get_overridable_initializers` is empty: a run
can't replace a weight.

`add_session_config_entry` keeps any key, and obeys three kinds:

- `session.disable_cpu_ep_fallback`: with "1", a session with `fallback` is refused.
- `session.model_external_initializers_file_folder_path`: the folder of the data files of a model given as bytes.
- `session.optimized_model_...`: passed to onnxruntime, which writes the file of `optimized_model_filepath`.

## Other modules of onnxruntime

`onnxruntime.quantization`, `.tools` and `.transformers` work on files. They are no part of trnrt: keep importing them
from onnxruntime, which is installed with trnrt, and give the file that they write to `trnrt.InferenceSession`.
`onnxruntime.backend` has its counterpart in `trnrt.interfaces.onnx_backend`.

`trnrt.__version__` is trnrt's. Where a script needs a version of onnxruntime, let it ask `onnxruntime.__version__`.

## Inputs

`run` takes arrays, lists, numbers of Python, `OrtValue`s, and tensors of PyTorch on the CPU. onnxruntime has no more
than the first two and `OrtValue`. As there, an array's dtype must be the model's, and an input that is a scalar in the
model may be an array with one number; here it becomes a scalar. Numbers in the other byte order are converted;
onnxruntime 1.32 reads them wrongly.

## Memory

All values are in the host's memory: `OrtValue` and `IOBinding` share it with numpy, as onnxruntime's do for "cpu".
Other devices' names are ignored. `bind_input` and `bind_output` refuse an address on another device.

## Profiles

With `SessionOptions.enable_profiling`, `end_profiling` writes `PREFIX_DATE.json`, a list of trace events for Perfetto
(ui.perfetto.dev) and for scripts that read onnxruntime's. Events of the category `Session` are wall-clock times:
`session_initialization` and each `model_run`. Events of the category `Node` are the steps of a plan, with their
*predicted* times on the device, one after the other from the start of their run; `args` has `op_name`, `provider` and
the ONNX `nodes`. A step that fuses nodes has their operators joined: `Conv+Relu`. The timeline of the last run's
kernels follows, with each core as a process.

"""

_ERRORS = """## Errors

trnrt raises its own errors, which are all `trnrt.errors.TrnrtError`, with a `hint` that says what to do. Code that
catches onnxruntime's by name keeps working: `trnrt.capi.onnxruntime_pybind11_state` has the names below, each as the
class that trnrt raises in its place. One class may stand for several names, so put the most special one first, as in
onnxruntime. A missing input is a ValueError, as there. Differences: an option of a wrong type or value is an
OptionError, for which onnxruntime has TypeError, RuntimeError or InvalidArgument. Any file that is no valid model is a
ModelFileError, for which onnxruntime may have InvalidArgument or Fail. An unsupported operator is refused when its
shapes are known, mostly by the first run.

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
