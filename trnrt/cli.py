"""The command line: ``trnrt VERB MODEL``.

This module lists the verbs, and turns errors into messages and exit codes. Their flags and their work are in
``trnrt.commands``, imported when a verb is called or its help is shown.

Results go to stdout, notes and progress to stderr. Exit codes: 0 success; 1 the answer is no; 2 the
request was wrong; 130 interrupted; 141 the reader of stdout went away.
"""

from __future__ import annotations

from typing import Any

import click

from trnrt import __version__
from trnrt.commands.blas import choose_blas_kernels, limit_blas_threads
from trnrt.commands.exits import call, exit_codes
from trnrt.commands.groups import cache_app, nki_app
from trnrt.commands.verbs import Verbs, quiet_option


class _AllVerbs(Verbs):
    """The verbs; trnrt's own errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        with exit_codes():
            return super().invoke(ctx)


app = _AllVerbs(
    "trnrt",
    help="Runs ONNX models on AWS Trainium, and on a simulator of it everywhere else.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, "-V", "--version", message="trnrt %(version)s", help="Print the version.")(app)
app.params.append(quiet_option())

_MODELS, _PRODUCTION, _KERNELS, _MACHINE = "Run a model", "Production", "Kernels", "This machine"

app.verb_at("run", "trnrt.commands.models:run_command", _MODELS, "Run a model, and print its outputs.")
app.verb_at(
    "validate", "trnrt.commands.models:validate_command", _MODELS, "Compare with onnxruntime on the same inputs."
)
app.verb_at(
    "profile",
    "trnrt.commands.models:profile_command",
    _MODELS,
    "Predict the latency on the device, and what limits it.",
)
app.verb_at(
    "inspect", "trnrt.commands.models:inspect_command", _MODELS, "Show the step and kernel of every node, and why."
)
app.verb_at("cut", "trnrt.commands.models:cut_command", _MODELS, "Cut a model before what can't run.")
app.verb_at("compile", "trnrt.commands.models:compile_command", _PRODUCTION, "Write the kernel module and its weights.")
app.verb_at("serve", "trnrt.commands.serve:serve_command", _PRODUCTION, "Serve predictions over HTTP.")
app.verb_at(
    "predict", "trnrt.commands.predict:predict_command", _PRODUCTION, "Predict many rows into files; resumable."
)
app.verb_at(
    "quantize",
    "trnrt.commands.quantize:quantize_command",
    _PRODUCTION,
    "Make an int8 model, and show what it loses.",
)
app.verb_at(
    "buckets",
    "trnrt.commands.models:buckets_command",
    _PRODUCTION,
    "Choose the batch sizes, or lengths, to compile for.",
)
app.verb_at(
    "plan",
    "trnrt.commands.plan:plan_command",
    _PRODUCTION,
    "Estimate the cores and instances for a request rate.",
)
app.add_group(nki_app, _KERNELS)
app.verb_at(
    "doctor",
    "trnrt.commands.models:doctor_command",
    _MACHINE,
    "Check this machine, and show how to fix what's missing.",
)
app.add_group(cache_app, _MACHINE)
app.verb_at(
    "calibrate",
    "trnrt.commands.models:calibrate_command",
    _MACHINE,
    "Fit the timing model to a device's self-test reports.",
)
app.verb_at(
    "completion",
    "trnrt.commands.completion:completion_command",
    _MACHINE,
    "Print the script that completes trnrt's commands in a shell.",
)
app.verb_at(
    "bench",
    "trnrt.commands.models:bench_command",
    "",
    "",
    hidden=True,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)


def main() -> None:
    """The entry point of ``trnrt``; exits with the verb's exit code."""
    choose_blas_kernels()
    limit_blas_threads()
    call(app)
