"""``trnrt doctor``: check this machine, choose a backend, and say how to fix each finding.

``machine.look`` only gathers facts; the rules, each a function of the facts, only judge them. The versions that work
together are data, with their sources: ``releases.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trnrt.neuron.doctor.machine import Machine
from trnrt.neuron.findings import BAD, STATES, Finding
from trnrt.neuron.releases import Releases

__all__ = ["BAD", "STATES", "Diagnosis", "Finding", "Releases", "Rule", "diagnose"]


@dataclass(frozen=True)
class Rule:
    """A row of the table of rules. A finding in BAD blocks the backends in ``needed_by``."""

    name: str
    needed_by: tuple[str, ...]
    judge: Callable[[Machine, Releases], Finding]


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the table. ``backend``: the one to use, "" if there is none."""

    machine: Machine
    findings: tuple[Finding, ...]
    backend: str
    reason: str
    blocking: dict[str, tuple[str, ...]]

    def usable(self, backend: str) -> bool:
        """True if ``backend`` ("auto": one of them) can be used."""
        return not all(self.blocking.values()) if backend == "auto" else not self.blocking[backend]

    def finding(self, name: str) -> Finding:
        """The finding of a rule."""
        return next(finding for finding in self.findings if finding.name == name)


def diagnose(machine: Machine, releases: Releases, rules: tuple[Rule, ...]) -> Diagnosis:
    """Apply the rules to the facts."""
    findings = tuple(rule.judge(machine, releases) for rule in rules)
    judged = list(zip(rules, findings, strict=True))
    blocking = {
        backend: tuple(f.name for rule, f in judged if backend in rule.needed_by and f.state in BAD)
        for backend in ("simulator", "neuron")
    }
    backend, reason = "", "neither the simulator nor a NeuronCore can be used"
    if machine.devices and not blocking["neuron"]:
        backend, reason = "neuron", f"{machine.devices[0]} is here, with all that it needs"
    elif not blocking["simulator"]:
        backend, reason = "simulator", "no Neuron device on this machine"
        if machine.devices:
            reason = f"the NeuronCore can't be used: {', '.join(blocking['neuron'])}"
    return Diagnosis(machine, findings, backend, reason, blocking)
