"""``pytest -m quick``: which tests are quick. A file here is quick as a whole, ``file::test`` a test of it.

Files were taken whose tests together need about a second of CPU time or less, and that between them import every room
(``tests/project/test_quick.py``). ``pytest -m quick --durations=20`` shows what to take out when it gets slow.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]

QUICK = frozenset(
    {
        "cache/test_cache_code.py",
        "capacity/test_capacity.py::test_durations",
        "capacity/test_capacity.py::test_what_takes_too_long_alone_is_not_possible",
        "capacity/test_capacity_queueing.py::test_a_lone_request_takes_what_it_takes_alone",
        "capacity/test_capacity_ranges.py::test_an_end_that_is_not_possible_is_told",
        "commands/test_cli_cache.py",
        "conformance/onnx/test_onnx_backend.py",
        "conformance/test_isa_matmul.py",
        "conformance/test_isa_selection.py",
        "conformance/test_isa_transfer.py",
        "conformance/test_nl_math.py",
        "conformance/test_nl_movement.py",
        "hf/test_pipeline_parts.py",
        "importer/test_importer.py",
        "importer/test_importer_dequantising.py",
        "importer/test_importer_errors.py",
        "importer/test_importer_parameters.py",
        "importer/test_importer_rewrites.py",
        "importer/test_importer_shapes.py",
        "inputs/test_inputs.py",
        "inputs/test_npz.py",
        "kernels/test_addition.py",
        "kernels/test_budgets.py",
        "kernels/test_channels.py",
        "neuron/test_captured.py",
        "neuron/test_doctor.py",
        "nki/test_costs.py",
        "nki/test_installing.py",
        "nki/test_nki_api.py",
        "nki/test_nki_arguments.py",
        "nki/test_nki_dynamic.py",
        "nki/test_nki_execute.py",
        "nki/test_nki_kernel_errors.py",
        "nki/test_nki_rule_limits.py",
        "nki/test_nki_rules.py",
        "nki/test_nki_values.py",
        "nki/test_subset.py",
        "nki/test_timing.py",
        "nki/test_timing_mechanisms.py",
        "nki/test_timing_regions.py",
        "nki/test_unwritten.py",
        "operators/test_planner_movement.py",
        "operators/test_planner_normalize.py",
        "operators/test_planner_reduce.py::test_nan_and_infinity_pass_on",
        "operators/test_planner_reduce.py::test_what_is_refused",
        "planner/test_planner_fusion.py",
        "planner/test_planner_golden.py",
        "planner/test_planner_making.py",
        "planner/test_planner_refusals.py",
        "planner/test_saving.py",
        "planner/test_stepwise.py::test_it_computes_the_same",
        "project/test_containerfiles.py",
        "project/test_door.py::test_links_lead_somewhere",
        "project/test_handing_out.py::test_neighbours_share_a_unit_and_so_do_all_of_ray",
        "project/test_ordering.py",
        "project/test_quick.py",
        "project/test_tree.py::test_arrows_go_one_way",
        "project/test_tree.py::test_the_key_of_a_cached_plan_covers_all_that_plans",
        "report/test_ranges.py",
        "report/test_report.py",
        "report/test_report_html.py",
        "report/test_trace.py",
        "running/test_buckets.py",
        "running/test_profiler.py",
        "predict/test_predict_sources.py::test_bad_rows_of_any_input_are_left_out_of_all",
        "predict/test_predict_sources.py::test_kinds_of_which_no_value_fits_are_refused",
        "quantise/test_quantising.py::test_an_old_model_is_folded_and_raised",
        "quantise/test_quantising.py::test_runs_are_compared_by_decisions_and_labels",
        "serve/test_grpc_calls.py",
        "serve/test_limits.py",
        "serve/test_logs.py",
        "serve/test_protocol.py",
        "serve/test_ray_listening.py",
        "serve/test_ray_proxy.py",
        "serve/test_settings.py",
        "serve/test_tensors.py",
        "session/test_onnxruntime_table.py::test_the_table_has_every_error_of_onnxruntime",
        "session/test_session.py",
        "benchmarks/test_bench.py",
        "benchmarks/test_nki_library.py::test_every_known_failure_is_of_a_family",
        "benchmarks/test_nki_library.py::test_families_add_up",
        "validate/test_validate.py",
        "vision/test_vision_boxes.py",
        "vision/test_vision_masks.py",
        "vision/test_vision_recognising.py",
        "validate/test_validate_outputs.py",
    }
)
FILES = frozenset(name.partition("::")[0] for name in QUICK)


def is_quick(path: Path, function: str) -> bool:
    """Whether a test function of a file is one of them."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else path.name
    return name in QUICK or f"{name}::{function}" in QUICK


def has_quick(path: Path) -> bool:
    """Whether a test file has any of them: others need not be imported to run them."""
    return path.relative_to(TESTS).as_posix() in FILES
