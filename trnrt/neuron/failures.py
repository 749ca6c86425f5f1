"""Failures of the Neuron runtime and compiler as errors that name the way out.

The status codes and remedies are from the SDK's pages on nrt_status.h and on troubleshooting; none was ever met here.
Those pages and nrtpy's name a status. torch-neuronx's errors have its number alone, as in
libraries/nxd-inference/tutorials/trn2-llama3.3-70b-tutorial.rst: "Failed to execute the model status=1003 message=...".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trnrt.errors import BackendError, DeviceError, KernelError, TrnrtError

_LONGEST = 600
"""Characters that are shown of a message: a compiler's may be a whole log."""


@dataclass(frozen=True)
class Status:
    """A status of the runtime: its meaning, the remedy, and whether the core is still ``usable`` by this process.

    ``device``: False if only this run failed, because of its inputs, and the model still works.
    """

    number: int
    meaning: str
    remedy: str
    usable: bool = True
    device: bool = True


_REPLACE = "stop and start the instance, or replace it: the hardware failed"
_OTHER_CORE = "stop it (neuron-ls names it), or name another core: NEURON_RT_VISIBLE_CORES"
_COMPILE_AGAIN = "compile the model again on this machine: trnrt cache clear"

STATUSES = {
    "NRT_FAILURE": Status(1, "the runtime failed and says no more", "see its log: NEURON_RT_LOG_LEVEL=INFO"),
    "NRT_INVALID": Status(2, "the compiled model or an input is not what the runtime takes", _COMPILE_AGAIN),
    "NRT_INVALID_HANDLE": Status(3, "the runtime does not know the model", "open the model again", usable=False),
    "NRT_RESOURCE": Status(4, "no memory of the device, or another resource, is left", "close other models"),
    "NRT_TIMEOUT": Status(5, "the core did not finish in time", "end this process; then look at dmesg", usable=False),
    "NRT_HW_ERROR": Status(6, "the hardware failed", _REPLACE, usable=False),
    "NRT_QUEUE_FULL": Status(7, "too many runs wait for the core", "send fewer at a time"),
    "NRT_LOAD_NOT_ENOUGH_NC": Status(9, "the compiled model needs more cores than there are", "ask for more cores"),
    "NRT_UNSUPPORTED_NEFF_VERSION": Status(
        10, "the runtime is older than the compiler that made this model", "update aws-neuronx-runtime-lib"
    ),
    "NRT_FAIL_HOST_MEM_ALLOC": Status(11, "the host has no memory left", "close other programs"),
    "NRT_UNINITIALIZED": Status(13, "the runtime was not started", "end this process", usable=False),
    "NRT_CLOSED": Status(14, "the runtime was closed", "end this process", usable=False),
    "NRT_EXEC_UNIT_UNRECOVERABLE": Status(101, "the core can't go on", "end this process", usable=False),
    "NRT_EXEC_BAD_INPUT": Status(1002, "an input is not what the model was compiled for", _COMPILE_AGAIN),
    "NRT_EXEC_COMPLETED_WITH_NUM_ERR": Status(
        1003, "the run made NaNs", "look at the inputs; validate the model", device=False
    ),
    "NRT_EXEC_COMPLETED_WITH_ERR": Status(1004, "the run ended with errors", _REPLACE, usable=False),
    "NRT_EXEC_NC_BUSY": Status(1005, "another process has the core", "stop it: neuron-ls names it"),
    "NRT_EXEC_OOB": Status(1006, "an indirect access left its tensor", "report it, with the kernel module"),
    "NRT_EXEC_HW_ERR_COLLECTIVES": Status(1200, "a collective operation is stuck", _REPLACE, usable=False),
    "NRT_EXEC_HW_ERR_HBM_UE": Status(1201, "the device's memory has an error", _REPLACE, usable=False),
    "NRT_EXEC_HW_ERR_NC_UE": Status(1202, "the core's own memory has an error", _REPLACE, usable=False),
    "NRT_EXEC_HW_ERR_DMA_ABORT": Status(1203, "a DMA engine gave up", _REPLACE, usable=False),
    "NRT_EXEC_SW_NQ_OVERFLOW": Status(1204, "a queue of notifications overflowed", "report it", usable=False),
    "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE": Status(
        1205, "the device's memory had an error that can be mended", "reload the driver, or reboot", usable=False
    ),
}
_NUMBERED = re.compile(r"\bstatus=(\d{1,4}),? (?:error )?message=")
_COMPILERS = re.compile(r"\bNCC_[A-Z]{4}\d{3}\b")
_TAKEN = re.compile(r"Neuron ?Core\(s\) not available")
# torch-neuronx's message for any reason; the reason is in the runtime's log (aws-neuron-sdk, issue 835).
_NOT_STARTED = re.compile(r"Neuron Runtime could not be initialized")
# TorchScript puts its own stack before the error's message, and may put Python's after it.
_SCRIPT = re.compile(r"Traceback of TorchScript.*\n\w*(?:Error|Exception): (.*?)(?:\n\nAt:\n.*)?\Z", re.DOTALL)


def status_of(message: str) -> tuple[str, Status] | None:
    """The status in a message of the runtime, with its name."""
    known = {str(status.number): name for name, status in STATUSES.items()} | {name: name for name in STATUSES}
    words = (*re.findall(r"\bNRT_[A-Z_]+\b", message), *_NUMBERED.findall(message))
    return next(((known[word], STATUSES[known[word]]) for word in words if word in known), None)


def device_error(doing: str, error: BaseException) -> BackendError:
    """The error for an exception of the runtime while ``doing`` something."""
    whole, said = _error_texts(error)
    if _TAKEN.search(whole):
        return DeviceError(f"{doing}: another process has the NeuronCore: {said}", hint=_OTHER_CORE, usable=True)
    found = status_of(whole)
    if found is None and _NOT_STARTED.search(whole):
        return DeviceError(
            f"{doing}: the runtime did not start: {said}",
            hint=f"its log says why; where another process has the core, {_OTHER_CORE}; else trnrt doctor",
            usable=True,
        )
    if found is None:
        return DeviceError(f"{doing}: {said}", hint="see the runtime's log: NEURON_RT_LOG_LEVEL=INFO", usable=True)
    name, status = found
    message = f"{doing}: {status.meaning} ({name}, {status.number}): {said}"
    if not status.device:  # a client that sends NaNs must not cost a server its model
        return BackendError(message, hint=status.remedy)
    return DeviceError(message, hint=status.remedy, usable=status.usable)


def is_compilers(error: BaseException) -> bool:
    """True for an error of AWS's compiler: by its class (nki 0.6's code), or by its code, as compiler/error-codes."""
    return type(error).__name__ == "NCCError" or _COMPILERS.search(str(error)) is not None


def compile_error(name: str, target: str, log: str, error: BaseException) -> TrnrtError:
    """The error for an exception of the compiler, or of the runtime, on which it loads its result."""
    whole, said = _error_texts(error)
    if _TAKEN.search(whole) or _NOT_STARTED.search(whole) or status_of(whole) is not None:
        return device_error(f"{name}: compiling it for {target}", error)
    return KernelError(
        f"AWS's compiler refused {name} for {target}: {type(error).__name__}: {said}",
        hint=f"its own files are in {log}; the simulator takes the module: please report it",
    )


def _error_texts(error: BaseException) -> tuple[str, str]:
    """An error's whole message, and the part to show."""
    message = str(error) or type(error).__name__
    inner = _SCRIPT.search(message)
    return message, _shorten(message if inner is None else inner[1])


def _shorten(message: str) -> str:
    """The end of a long message, which has the reason, on one line."""
    text = " ".join(message.split())
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"
