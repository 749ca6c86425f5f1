"""A device's profile beside the prediction: the tables, the step of each instruction, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import trnrt
from explorer_tables import SCHEMA, Tables, tables_of, write_tables

import trnrt as package
from trnrt.errors import InputError, OptionError
from trnrt.neuron.backend import DEBUG_SETTINGS
from trnrt.neuron.captured import Attribution, attributing, explorer
from trnrt.neuron.captured.attributing import attribute, lines_of, union_length
from trnrt.neuron.captured.explorer import read_profile
from trnrt.nki.machine.program import Instruction
from trnrt.nki.profiling import Profile
from trnrt.planner.plan import Plan
from trnrt.planner.rendering.stepwise import function_lines, split_functions
from trnrt.running.profiler import profile_plan

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
STEPS = ["node_conv2d", "node_conv2d_1", "node_linear", "(weights brought ahead)"]


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Profile]:
    session = package.InferenceSession(CNN, backend="simulator", effort=1)
    plan = session.plan(1)
    return plan, profile_plan(plan)


def elsewhere(instruction: Instruction) -> str:
    """As the compiler of another machine writes it: the line of the call of NKI, in a file of that machine."""
    below = instruction.source.file.partition("/trnrt/kernels/")[2]
    return f"/home/ubuntu/venv/lib/python3.12/site-packages/trnrt/kernels/{below}:{instruction.source.line}"


def in_the_module(module: str) -> Callable[[Instruction], str]:
    """With the line of the kernel module beside it."""
    return lambda instruction: f"['{elsewhere(instruction)}', '/home/ubuntu/{module}:{instruction.line}']"


def attributed(folder: Path, planned: tuple[Plan, Profile], tables: Tables) -> Attribution:
    return attribute(read_profile(write_tables(folder, tables)), [planned], "digits_cnn")


def test_lines_of_the_module_give_every_instruction_its_step(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    timeline = planned[1].timeline
    module = Path(timeline.program.file).name
    found = attributed(tmp_path / "p", planned, tables_of(timeline, in_the_module(module)))
    assert [step.name for step in found.steps] == STEPS
    assert found.rest == () and found.notes == () and not any(step.inferred for step in found.steps)
    assert sum(step.instructions for step in found.steps) == len(timeline.instruction)
    for step in found.steps:
        assert step.active_us == pytest.approx(2 * step.predicted_active_us, abs=0.1)
        assert 0 <= step.start_us < step.end_us <= found.elapsed_us + 0.1
    assert found.total_us == pytest.approx(2 * timeline.duration / 1e6) and found.dma
    assert found.steps[0].nodes == ("node_conv2d", "node_relu", "node_max_pool2d")


def test_lines_of_kernels_that_steps_share_are_told_apart_by_the_order(
    tmp_path: Path, planned: tuple[Plan, Profile]
) -> None:
    """Two convolutions call one kernel; the linear layer's lines, and the load of the weights, are theirs alone."""
    found = attributed(tmp_path / "p", planned, tables_of(planned[1].timeline, elsewhere))
    inferred = {step.name: step.inferred for step in found.steps}
    assert inferred["node_linear"] == inferred["(weights brought ahead)"] == 0
    # The load of the image is on a line of its own, which only the first one reaches.
    assert inferred["node_conv2d"] == found.steps[0].instructions - 1 and found.rest == ()
    assert found.notes == ("the profile does not name its kernel module: it may be of another plan",)
    assert inferred["node_conv2d_1"] == found.steps[1].instructions > 0
    exact = attributed(
        tmp_path / "q",
        planned,
        tables_of(planned[1].timeline, in_the_module(Path(planned[1].timeline.program.file).name)),
    )
    assert [step.active_us for step in found.steps] == [step.active_us for step in exact.steps]


def test_what_can_not_be_told_apart_is_told_as_such(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    tables = tables_of(planned[1].timeline, elsewhere)
    shared = next(row for row in tables["Instruction"] if "conv/convolving.py" in row["nki_source_location"])
    tables["Instruction"].append({**shared, "start_ts": shared["start_ts"] + 1})
    tables["Instruction"].append({**shared, "nki_source_location": None, "start_ts": 0, "end_ts": 5000})
    tables["Instruction"].append({**shared, "nki_source_location": "/x/other.py:1", "start_ts": 0, "end_ts": 6000})
    found = attributed(tmp_path / "p", planned, tables)
    together, unknown = found.rest
    assert together.steps == ("node_conv2d", "node_conv2d_1") and together.instructions > 1
    assert unknown.steps == () and (unknown.instructions, unknown.active_us) == (2, 6.0)
    assert sum(step.instructions for step in found.steps) + together.instructions + 2 == len(
        [row for row in tables["Instruction"] if row["opcode"] != "EVENT_SEMAPHORE"]
    )


def test_the_calls_of_a_kernel_instruction_give_the_step(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    """Where the profile has the calls: the line of the module is the innermost frame that is in a step."""
    timeline = planned[1].timeline
    module = Path(timeline.program.file).name
    tables = tables_of(timeline, elsewhere)
    tables["KernelStackFrames"] = [{"stack_frame_id": 1, "file_path": f"/c/{module}", "line_number": 14}]
    tables["KernelInstructions"] = []
    for number, row in enumerate(tables["Instruction"]):
        line = timeline.program.instructions[timeline.instruction[number // 2]].line
        row["kernel_instruction_name"] = f"inst.{number}:0"
        own, frame = f"inst.{number}:0", number + 2
        tables["KernelInstructions"].append({"kernel_instruction_name": own, "stack_frame_id": frame})
        where = {"file_path": f"/c/{module}", "line_number": line}
        tables["KernelStackFrames"].append({"stack_frame_id": frame, "parent_stack_frame_id": 1, **where})
    found = attributed(tmp_path / "p", planned, tables)
    assert not any(step.inferred for step in found.steps) and found.rest == ()


def test_functions_of_the_steps_tell_them_apart_where_frames_have_their_definitions(
    tmp_path: Path, planned: tuple[Plan, Profile]
) -> None:
    """As the documentation says of a frame: its line is where the function is defined, not where it is called."""
    stepwise = split_functions(planned[0])
    predicted = profile_plan(stepwise)
    timeline = predicted.timeline
    module, spans = Path(timeline.program.file).name, function_lines(stepwise)
    entry = stepwise.source.splitlines().index("@nki.jit") + 2
    calls = {step.lines[0]: number for number, step in enumerate(stepwise.steps)}
    tables = tables_of(timeline, elsewhere)
    tables["KernelStackFrames"] = [{"stack_frame_id": 0, "file_path": f"/c/{module}", "line_number": entry}]
    for number, (first, _) in enumerate(spans):
        where = {"file_path": f"/c/{module}", "line_number": first}
        tables["KernelStackFrames"].append({"stack_frame_id": number + 1, "parent_stack_frame_id": 0, **where})
    tables["KernelInstructions"] = []
    for number, row in enumerate(tables["Instruction"]):
        line = timeline.program.instructions[timeline.instruction[number // 2]].line
        row["kernel_instruction_name"] = f"inst.{number}:0"
        frame = calls[line] + 1 if line in calls else 0
        tables["KernelInstructions"].append({"kernel_instruction_name": f"inst.{number}:0", "stack_frame_id": frame})
    profile = read_profile(write_tables(tmp_path / "p", tables))
    found = attribute(profile, [planned, (stepwise, predicted)], "digits_cnn")
    assert [step.name for step in found.steps] == STEPS and found.rest == ()
    assert not any(step.inferred for step in found.steps)
    for step in found.steps:
        assert step.active_us == pytest.approx(2 * step.predicted_active_us, abs=0.1)


def test_without_times_of_transfers_the_prediction_has_none_either(
    tmp_path: Path, planned: tuple[Plan, Profile]
) -> None:
    tables = tables_of(planned[1].timeline, elsewhere)
    for row in tables["Instruction"]:
        row.pop("dma_trigger_start_ts", None)
        row.pop("dma_trigger_end_ts", None)
    found = attributed(tmp_path / "p", planned, tables)
    ahead = found.steps[-1]
    assert not found.dma and ahead.active_us == pytest.approx(2 * ahead.predicted_active_us, abs=0.01)


def test_one_execution_and_one_core_are_shown(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    tables = tables_of(planned[1].timeline, elsewhere)
    rows = tables["Instruction"]
    alone = attributed(tmp_path / "alone", planned, {**tables, "Instruction": list(rows)})
    late = 10**10
    tables["Instruction"] = [
        {**row, "start_ts": row["start_ts"] + late, "end_ts": row["end_ts"] + late} for row in rows
    ]
    tables["Instruction"] += [{**row, "pcore_idx": 1, "start_ts": late} for row in rows[:4]] + rows
    tables["ExecutionInfo"] = [
        {"execution_index": 0, "execution_start_ts": 0, "execution_end_ts": late},
        {"execution_index": 1, "execution_start_ts": late, "execution_end_ts": 2 * late},
    ]
    tables["Warning"] = [{"message": "no compiler metrics", "category": "Missing Data"}]
    found = attributed(tmp_path / "p", planned, tables)
    assert [step.instructions for step in found.steps] == [step.instructions for step in alone.steps]
    assert found.notes[:-1] == (
        "the last of 2 executions is shown",
        "2 instructions of the second physical core are left out",
        "the profiler warns: no compiler metrics",
    )
    assert found.total_us is None, "it is of all executions"


def test_a_table_may_be_split(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    tables = tables_of(planned[1].timeline, elsewhere)
    whole = read_profile(write_tables(tmp_path / "a", tables))
    rows = tables.pop("Instruction")
    parts = {"Instruction_0": rows[:10], "Instruction_1": rows[10:]}
    split = read_profile(write_tables(tmp_path / "b", {**tables, **parts}))
    np.testing.assert_array_equal(whole.start, split.start)


def changed(tables: Tables, table: str, **fields: Any) -> None:
    tables[table] = [{**row, **fields} for row in tables[table]]


def without(tables: Tables, table: str, field: str) -> None:
    tables[table] = [{name: value for name, value in row.items() if name != field} for row in tables[table]]


WRONG: list[tuple[Callable[[Tables], Any], str]] = [
    (lambda t: without(t, "Instruction", "engine"), r"Instruction.parquet has no field engine; it has "),
    (lambda t: t.pop("Metadata"), "the table Metadata is missing"),
    (lambda t: t.pop("Instruction"), "has no Instruction.parquet"),
    (lambda t: changed(t, "Metadata", is_simulation=True), "it was simulated by AWS's compiler"),
    (
        lambda t: changed(t, "Metadata", instance_type="trn1.2xlarge"),
        "captured on trn1.2xlarge, and the plan is for trn2",
    ),
    (lambda t: changed(t, "Instruction", nki_source_location=None), "no instruction of the profile has a line"),
    (lambda t: changed(t, "Instruction", opcode="EVENT_SEMAPHORE"), "no instruction was executed"),
    (lambda t: changed(t, "Instruction", engine=None), "an instruction has no time, engine or opcode"),
    (
        lambda t: changed(t, "Instruction", nki_source_location=f"/x/digits_cnn_{'0' * 32}.py:20"),
        f"of the kernel module digits_cnn_{'0' * 32}.py, and this plan's is digits_cnn_",
    ),
    (
        lambda t: t.update(
            SchemaFields=[{"table_name": "Instruction", "field_name": "start_ts", "field_unit": "picoseconds"}]
        ),
        "Instruction.start_ts is in picoseconds, and nanoseconds is documented",
    ),
    (
        lambda t: t.update(ExecutionInfo=[{"execution_index": 0}, {"execution_index": 1}]),
        "it has 2 executions without their times",
    ),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_what_is_not_as_documented_is_refused(
    change: Callable[[Tables], Any], told: str, tmp_path: Path, planned: tuple[Plan, Profile]
) -> None:
    tables = tables_of(planned[1].timeline, elsewhere)
    change(tables)
    with pytest.raises(InputError, match=told):
        attributed(tmp_path / "p", planned, tables)


def test_a_schema_of_another_major_version_is_told(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    """As SDK 2.33 has it: what is needed may be there, and mean something else."""
    tables = tables_of(planned[1].timeline, elsewhere)
    changed(tables, "Metadata", profile_schema_version="12.0.1")
    told = "its schema is 12.0.1, and the fields are read as those of 7.4.0"
    assert told in attributed(tmp_path / "p", planned, tables).notes
    without(tables, "Instruction", "engine")
    with pytest.raises(InputError, match=f"no field engine; it has .*; {told}\nhint: ") as caught:
        attributed(tmp_path / "q", planned, tables)
    assert "aws-neuronx-tools 2.31 or 2.32" in str(caught.value.hint) and "--show-profile" in str(caught.value.hint)
    changed(tables, "Metadata", profile_schema_version="7.9.0")
    with pytest.raises(InputError) as caught:
        attributed(tmp_path / "r", planned, tables)
    assert "its schema is" not in str(caught.value)


def test_another_type_and_a_broken_file_are_refused(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    import pyarrow
    import pyarrow.parquet

    folder = write_tables(tmp_path / "p", tables_of(planned[1].timeline, elsewhere))
    path = folder / "Instruction.parquet"
    table = pyarrow.parquet.read_table(path)
    times = table.column("start_ts").cast(pyarrow.string())
    pyarrow.parquet.write_table(table.set_column(table.schema.get_field_index("start_ts"), "start_ts", times), path)
    with pytest.raises(InputError, match="start_ts is string, and integer is documented"):
        read_profile(folder)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="can't be read"):
        read_profile(folder)


def test_which_directory_is_meant(
    tmp_path: Path, planned: tuple[Plan, Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(planned[1].timeline, elsewhere)
    folder = write_tables(tmp_path / "profiles" / "global" / "a@latest", tables)
    for path in (tmp_path, folder, folder / "Summary.parquet"):
        assert explorer.find_tables(path) == folder
    write_tables(tmp_path / "profiles" / "global" / "b@latest", tables)
    with pytest.raises(OptionError, match="has 2 profiles"):
        explorer.find_tables(tmp_path)
    (tmp_path / "profile.ntff").write_bytes(b"")
    with pytest.raises(InputError, match="is no directory of Parquet tables") as caught:
        explorer.find_tables(tmp_path / "profile.ntff")
    assert "--ingest-only" in str(caught.value.hint)
    monkeypatch.setattr(explorer, "MOST_ROWS", 10)
    with pytest.raises(InputError, match="the limit is 10"):
        read_profile(folder)


def test_the_fields_that_are_relied_on_are_documented() -> None:
    relied = json.loads(Path(explorer.__file__).with_name("schema.json").read_text(encoding="utf-8"))
    assert relied["profile_schema_version"] == SCHEMA["version"]
    for table, fields in relied["tables"].items():
        assert fields.items() <= SCHEMA["tables"][table].items()
    variables = {name: said["value"] for name, said in SCHEMA["variables"].items()}
    assert DEBUG_SETTINGS.items() <= variables.items()


def test_the_union_of_intervals() -> None:
    assert union_length(np.array([5, 0, 1, 20]), np.array([6, 3, 2, 20])) == 4
    assert union_length(np.array([], np.int64), np.array([], np.int64)) == 0


def test_files_are_known_by_their_path_below_the_kernels(planned: tuple[Plan, Profile]) -> None:
    lines = lines_of(planned[0], planned[1].timeline)
    assert {"conv/stacking.py", "linear.py", "common.py"} <= {file for file, _ in lines.reached}
    assert attributing._key("/a/kernels/conv/stacking.py") == "conv/stacking.py"
    assert lines.short["stacking.py"] == "conv/stacking.py", "a name alone is enough where it is one file's"


def test_the_verb_shows_measured_beside_predicted(tmp_path: Path, planned: tuple[Plan, Profile]) -> None:
    folder = write_tables(tmp_path / "p", tables_of(planned[1].timeline, elsewhere))
    outcome = trnrt("profile", CNN, "--device-profile", folder)
    assert outcome.code == 0, outcome.err
    assert "digits_cnn as captured on trn2.48xlarge: total_time" in outcome.out
    assert "measured us" in outcome.out and "inferred: instructions of a line" in outcome.out
    document = trnrt("profile", CNN, "--device-profile", folder, "--json").document["device_profile"]
    assert [step["name"] for step in document["steps"]] == STEPS and document["rest"] == []
    other = trnrt("profile", CNN, "--device-profile", folder, "--target", "trn1")
    assert other.code == 2 and "hint: say --target trn2" in other.err
