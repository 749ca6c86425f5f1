"""``trnrt doctor``: what is on this machine, whether it fits together, what would be used, and what mends each finding.

``machine.look`` gathers facts and judges nothing; the rules, each a function of the facts, judge and gather nothing.
What fits together is data, with its sources: ``releases.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trnrt.neuron.doctor.machine import Machine
from trnrt.neuron.releases import Releases
from trnrt.neuron.requirements import BAD, STATES, Finding

__all__ = ["BAD", "STATES", "Diagnosis", "Finding", "Releases", "Rule", "diagnose"]


@dataclass(frozen=True)
class Rule:
    """A row of the table of rules. Where one of ``needed_by`` is asked for, a finding in BAD says that it can't run."""

    name: str
    needed_by: tuple[str, ...]
    judge: Callable[[Machine, Releases], Finding]


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the table; ``backend`` is what would be used, "" where that is nothing."""

    machine: Machine
    findings: tuple[Finding, ...]
    backend: str
    reason: str
    blocking: dict[str, tuple[str, ...]]

    def usable(self, backend: str) -> bool:
        """Whether ``backend`` ("auto": one of them) can be used."""
        if backend == "auto":
            return not all(self.blocking.values())
        return not self.blocking[backend]

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
    if machine.devices and not blocking["neuron"]:
        return Diagnosis(machine, findings, "neuron", f"{machine.devices[0]} is here, and what it needs", blocking)
    if not blocking["simulator"]:
        missing = ", ".join(blocking["neuron"])
        reason = (
            "no Neuron device on this machine" if not machine.devices else f"the NeuronCore can't be used: {missing}"
        )
        return Diagnosis(machine, findings, "simulator", reason, blocking)
    return Diagnosis(machine, findings, "", "neither the simulator nor a NeuronCore can be used", blocking)
