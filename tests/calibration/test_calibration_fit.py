"""The fit of the timing model's free numbers and choices, on made-up measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

import pytest

from benchmarks.timing.table import summary
from trnrt.calibration import fit, kernels
from trnrt.calibration.cases import Case, predicted_us
from trnrt.calibration.fit import FREE, Choice, Model, Parameter
from trnrt.calibration.published import CASES
from trnrt.nki.machine.pace import Timing, with_value
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Range


def sure(us: float) -> Range:
    return Range(us, us, us)


@dataclass(frozen=True)
class Synthetic(Case):
    """A case whose measurement is made up."""

    made_up_us: float = 0.0
    wrote: str = ""

    @property
    def target(self) -> str:
        return "trn1" if self.id.startswith("one") else "trn2"

    @property
    def author(self) -> str:
        return self.wrote or self.id

    @property
    def values_us(self) -> tuple[float, ...]:
        return (self.made_up_us,)


Formula = Callable[[Timing, float], float]
PACKET = Parameter(("trn1",), "dma.packet_ns", 4, 100, prior=8)
START = Parameter(("trn1", "trn2"), "dma.start_hardware_ns", 400, 2500, prior=1250)
HEAD = Parameter(("trn2",), "head_ns", 1000, 50000, prior=10000)


def made_up(timing: Timing, size: float) -> float:
    return timing.dma.packet_ns * size + timing.dma.start_hardware_ns + 100


def synthetic(name: str, size: float, factor: float = 1.0) -> Synthetic:
    truth = get_target("trn1").timing
    truth = with_value(with_value(truth, "dma.packet_ns", 43.0), "dma.start_hardware_ns", 700.0)
    return Synthetic(name, kernels.silu, lambda n: (), (int(size),), made_up_us=made_up(truth, size) * factor)


def model(*given: Synthetic, parameters: tuple[Parameter | Choice, ...] = (PACKET, START)) -> Model:
    def predict(case: Case, timing: Timing) -> float:
        return made_up(timing, case.length[0])

    return Model(parameters, given, predict, lambda case, timing: sure(predict(case, timing)))


def test_the_fit_finds_the_parameters_again() -> None:
    found = fit.fit(model(*(synthetic(f"one-{size}", size) for size in (1, 10, 50, 200))))
    packet, start = found.values
    assert packet.after == pytest.approx(43, rel=0.02)
    assert start.after == pytest.approx(700, rel=0.03)
    assert packet.before == get_target("trn1").timing.dma.packet_ns
    assert summary(found.rows).worst_error < 0.02
    assert summary(found.left_out).worst_error < 0.03


def test_one_wrong_measurement_does_not_pull_the_others_away() -> None:
    given = [synthetic(f"one-{size}", size) for size in (1, 10, 50, 200, 400)]
    found = fit.fit(model(*given, synthetic("one-wrong", 100, factor=2.0)))
    assert found.values[0].after == pytest.approx(43, rel=0.06)
    assert found.left_out[-1].error == pytest.approx(-0.5, abs=0.02)


def test_what_only_the_left_out_measurement_decides_keeps_its_prior() -> None:
    found = fit.fit(model(synthetic("one-only", 50), parameters=(PACKET,)))
    assert abs(found.rows[0].error) < 0.3
    assert found.left_out[0].predicted_us == made_up(with_value(get_target("trn1").timing, "dma.packet_ns", 8), 50)


def test_whole_authors_are_left_out() -> None:
    others = [synthetic(f"one-{size}", size) for size in (1, 10, 50, 200, 400)]
    pair = [replace(synthetic(f"one-wrong-{size}", size, factor=2.0), wrote="she") for size in (90, 110)]
    found = fit.fit(model(*others, *pair))
    assert [row.error for row in found.left_out[-2:]] == pytest.approx([-0.5, -0.5], abs=0.01)


def test_values_stay_within_their_bounds() -> None:
    assert PACKET.value_at(0) == 8
    assert (PACKET.value_at(-10_000), PACKET.value_at(10_000)) == (4, 100)
    assert list(PACKET.neighbours(0, 8)) == [8, -8]
    assert list(PACKET.neighbours(10_000, 8)) == []  # the bound again
    found = fit.fit(model(synthetic("one-much", 50, factor=50.0), parameters=(PACKET,)))
    assert found.values[0].after == 100


def test_a_case_is_predicted_anew_only_where_what_matters_to_it_moved() -> None:
    asked: list[str] = []
    given = (synthetic("one", 1), synthetic("two", 1), synthetic("two-more", 1))

    def predict(case: Case, timing: Timing) -> float:
        asked.append(case.id)
        return timing.head_ns

    head = replace(HEAD, matters=lambda case: case.id == "two-more")
    tried = Model((PACKET, head), given, predict)
    for point in [(0, 0), (1, 0), (1, 0), (1, 5)]:
        for case in given:
            tried.predicted_us(case, point)
    assert asked == ["one", "two", "two-more", "one", "two-more"]
    assert tried.timing("trn2", (1, 5)).dma == get_target("trn2").timing.dma


@pytest.mark.parametrize("names", [("lines", "squares"), ("squares", "lines")])
def test_the_fit_finds_choices_too(names: tuple[str, ...]) -> None:
    """Beside a number; and each author's leaving out finds them again."""
    powers = {"lines": 1, "squares": 2}
    choice = Choice(("trn1", "trn2"), "dma.static_stores", names)

    def predict(case: Case, timing: Timing) -> float:
        return float(timing.dma.packet_ns * case.length[0] ** powers[timing.dma.static_stores])

    truth = with_value(with_value(get_target("trn1").timing, "dma.packet_ns", 20.0), "dma.static_stores", "squares")
    given = [
        replace(one, made_up_us=predict(one, truth)) for one in (synthetic(f"one-{n}", n) for n in (2, 5, 11, 23, 40))
    ]
    found = fit.fit(Model((choice, PACKET), given, predict, lambda case, timing: sure(predict(case, timing))))
    assert (found.values[0].after, found.values[1].after) == ("squares", pytest.approx(20, rel=0.02))
    assert found.values[0].before == get_target("trn1").timing.dma.static_stores
    assert found.without.keys() == {case.author for case in given}
    assert {values[0].after for values in found.without.values()} == {"squares"}


def test_places_in_a_timing() -> None:
    timing = get_target("trn2").timing
    assert with_value(timing, "dma.packet_ns", 11.0).dma.packet_ns == 11
    assert with_value(timing, "head_ns", 1.0) == replace(timing, head_ns=1.0)


def test_free_parameters_are_few_and_plausible() -> None:
    assert len(FREE) < len(CASES) / 3
    for parameter in FREE:
        assert any(parameter.matters(case) for case in CASES if case.target in parameter.targets)
        for target in parameter.targets:
            present = attrgetter(parameter.name)(get_target(target).timing)
            if isinstance(parameter, Choice):
                assert present in parameter.values
            else:
                assert 0 < parameter.low <= parameter.prior <= parameter.high
                assert parameter.low <= present <= parameter.high


@pytest.mark.parametrize("parameter", FREE, ids=lambda parameter: f"{parameter.name}-{'-'.join(parameter.targets)}")
def test_what_is_said_not_to_matter_to_a_case_does_not(parameter: Parameter | Choice) -> None:
    """Its predictions are not made anew when the parameter moves. One case of each kernel and mode stands for all."""
    seen = set()
    for case in CASES:
        kind = case.kernel, case.facts["mode"], case.id.split("-")[-1] if "conv" in case.id else ""
        if case.target not in parameter.targets or parameter.matters(case) or kind in seen:
            continue
        seen.add(kind)
        one = replace(case, length=min(case.short, default=case.length))
        values = parameter.values if isinstance(parameter, Choice) else (parameter.low, parameter.high)
        timing = get_target(case.target).timing
        assert len({predicted_us(one, with_value(timing, parameter.name, value)) for value in values}) == 1, case.id
