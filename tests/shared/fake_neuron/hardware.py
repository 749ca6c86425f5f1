"""The device and its runtime: cores that a process takes, and what goes wrong with them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from threading import Barrier, Event

from fake_neuron.documented import REFERENCE, NotDocumented

# rule: cores of trn1; rule: cores of trn2; rule: cores of trn3
PHYSICAL = {"trn1": 2, "trn2": 8, "trn3": 8}


@dataclass
class Faults:
    """What goes wrong: a compiler's or the runtime's message, an event that a hanging run waits for, wrong numbers.

    With ``gathering``, runs wait for each other. ``wide_integers`` is no fault: the reference does not say in which
    dtype torch gets a kernel's unsigned results.
    """

    compiling: str = ""
    loading: str = ""
    running: str = ""
    hanging: Event | None = None
    gathering: Barrier | None = None
    wrong: bool = False
    wide_integers: bool = False
    wrong_shape: bool = False


@dataclass
class Hardware:
    """A machine with ``devices`` devices of a kind; ``taken`` are cores that another process has."""

    target: str = "trn2"
    devices: int = 1
    taken: frozenset[int] = frozenset()
    faults: Faults = field(default_factory=Faults)
    visible: tuple[int, ...] | None = None
    lnc: int = 0
    compiled: list[str] = field(default_factory=list)
    ran_on: list[int] = field(default_factory=list)
    weight_copies: int = 0

    def start(self) -> tuple[int, ...]:
        """Start the runtime, once a process: it takes the cores that the environment names, else all."""
        if self.visible is not None:
            return self.visible
        self.lnc = int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1" if self.target == "trn1" else "2"))
        timeout = os.environ.get("NEURON_RT_EXEC_TIMEOUT", "30")
        if not timeout.isdigit():
            raise NotDocumented("whole seconds", f"NEURON_RT_EXEC_TIMEOUT={timeout}: it is a whole number of seconds")
        count = self.devices * PHYSICAL[self.target] // self.lnc
        told = os.environ.get("NEURON_RT_VISIBLE_CORES")
        cores = tuple(range(count)) if told is None else contiguous(told)
        # rule: all cores are taken; rule: taken cores; rule: not available
        free = [core for core in cores if core < count and core not in self.taken]
        if len(free) < len(cores):
            raise RuntimeError(
                f"nrt_allocate_neuron_cores NeuronCore(s) not available - Requested:nc{cores[0]}-nc{cores[-1]} "
                f"Available:{len(free)}"
            )
        self.visible = cores
        return cores

    def place(self, core: int) -> int:
        """A core by its number among those that the process sees."""
        visible = self.start()
        if not isinstance(core, int) or not 0 <= core < len(visible):
            raise NotDocumented("cores of the process", f"core {core!r} of a process that sees {len(visible)}")
        if self.faults.loading:
            raise RuntimeError(self.faults.loading)
        return core


def contiguous(text: str) -> tuple[int, ...]:
    """Cores as NEURON_RT_VISIBLE_CORES names them: in increasing order, none missing between."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    if not cores or cores != list(range(cores[0], cores[0] + len(cores))):
        raise NotDocumented("cores in a row", f"NEURON_RT_VISIBLE_CORES={text}: the cores must be contiguous")
    return tuple(cores)


def compiler_flags(arguments: object) -> dict[str, str]:
    """The compiler's arguments by flag, each a documented one."""
    if not isinstance(arguments, str | list) or not all(isinstance(item, str) for item in arguments):
        raise NotDocumented("texts for the compiler", f"compiler_args={arguments!r}: a text, or a list of texts")
    words = (arguments if isinstance(arguments, str) else " ".join(arguments)).replace("=", " ").split()
    flags: dict[str, str] = {}
    last = ""
    for word in words:
        if word.startswith("-"):
            last = word
            flags[word] = ""
            if word not in REFERENCE["compiler"]["flags"]:
                raise NotDocumented("flags of the compiler", f"neuronx-cc has no flag {word}")
        elif last:
            flags[last], last = word, ""
        else:
            raise NotDocumented("flags of the compiler", f"compiler_args={arguments!r}: {word!r} belongs to no flag")
    targets = (*REFERENCE["compiler"]["targets"], *REFERENCE["compiler"]["also_target"])
    if flags.get("--target", targets[0]) not in targets:
        raise NotDocumented("targets of the compiler", f"neuronx-cc has no target {flags['--target']}")
    return flags
