"""The HTML report in a real browser: what hovering shows is what the timeline says, and nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from timelines import LANES, matmul_program, paced, profile_of

import trnrt
from trnrt.backends.simulator import load_entry
from trnrt.nki import Spec, trace
from trnrt.nki.machine.timing import Timeline, schedule
from trnrt.nki.profiling import Profile, profile_programs
from trnrt.report.against import compare_runs
from trnrt.report.documents import call_document
from trnrt.report.page import report_html
from trnrt.report.page.reading import run_of_profile
from trnrt.report.timeline import tile_spans

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODELS = Path(__file__).parents[2] / "models"
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"


@dataclass
class Report:
    """A report in a page; everything that went wrong or over the network is kept, and must be nothing at the end."""

    page: Page
    wrong: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def bar(self, span: int) -> tuple[float, float]:
        """The middle of a span's bar in the window, which is scrolled there."""
        self.page.locator("#timeline").scroll_into_view_if_needed()
        return middle(self.page.evaluate("span => window.trnrt.bar(span)", span))

    def before(self, span: int) -> tuple[float, float]:
        """The middle of the bar of a span of the other run."""
        self.page.locator("#timeline").scroll_into_view_if_needed()
        return middle(self.page.evaluate("span => window.trnrt.barBefore(span)", span))

    def tile(self, memory: int, tile: int) -> tuple[float, float]:
        """The middle of a tile in the picture of addresses."""
        self.page.get_by_label("Addresses").dispatch_event("click")  # the input lies under its label, and has no place
        self.page.locator("#memories canvas").nth(memory).scroll_into_view_if_needed()
        return middle(self.page.evaluate("([memory, tile]) => window.trnrt.tile(memory, tile)", [memory, tile]))

    def field(self, name: str, panel: str = "panel") -> str:
        return self.page.locator(f"#{panel} [data-field='{name}']").inner_text()

    def attribute(self, name: str, panel: str = "panel") -> float:
        value = self.page.locator(f"#{panel}").get_attribute(f"data-{name}")
        assert value is not None, f"the panel has no {name}"
        return float(value)

    def window(self) -> tuple[float, float]:
        """The time that is shown, picoseconds."""
        view = self.page.evaluate("window.trnrt.view")
        return view["from"], view["to"]


def middle(box: dict[str, float]) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


class Opener:
    """Opens reports, and checks at the end that nothing was wrong with any."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.opened: list[Report] = []

    def __call__(self, profile: Profile, title: str = "matmul", **options: Any) -> Report:
        path = self.folder / f"report{len(self.opened)}.html"
        path.write_text(report_html(profile, title, options.pop("difference", None)), encoding="ascii")
        context = self.browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 900}), **options)
        report = Report(context.new_page())
        report.page.on("console", lambda message: report.wrong.append(message.text))
        report.page.on("pageerror", lambda error: report.wrong.append(str(error)))
        report.page.on("request", lambda request: report.requests.append(request.url))
        report.page.goto(path.as_uri())
        report.page.wait_for_function("window.trnrt !== undefined")
        self.opened.append(report)
        return report

    def close(self) -> None:
        for report in self.opened:
            report.page.context.close()
        for number, report in enumerate(self.opened):
            assert report.wrong == []
            assert report.requests == [(self.folder / f"report{number}.html").as_uri()]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(browser, tmp_path)
    yield opener
    opener.close()


def launch_of(timeline: Timeline) -> int:
    """The fixed start of a program before its first instruction, picoseconds."""
    return round(timeline.timing.benchmark_ns * 1000)


def matmul_timeline() -> Timeline:
    return paced(matmul_program())


def test_hovering_a_bar_shows_its_issue(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    for issue in range(5):
        report.page.mouse.move(*report.bar(issue))
        assert report.attribute("issue") == issue
        assert report.attribute("start") == timeline.start[issue]
        assert report.attribute("end") == timeline.end[issue]
        assert report.field("duration") == "251 ns"
        assert report.field("operation") == timeline.program.instructions[issue].operation.name
        assert report.field("lane").startswith(LANES[timeline.lane[issue]])


def test_the_panel_says_what_an_issue_is(opened: Opener) -> None:
    report = opened(profile_of(matmul_timeline()))
    report.page.mouse.move(*report.bar(2))
    assert "product[128, 512] float32 psum" in report.field("operands")
    assert "nisa.nc_matmul(dst=product" in report.field("source") and "timelines.py" in report.field("source")
    assert report.field("waited-for").split("\n")[0] == "dma_copy on queue sync"
    assert "150 ns before its end" in report.field("waited-for")
    assert report.field("nodes").startswith("node_")
    report.page.mouse.move(*report.bar(1))
    assert "64.0 KiB at 261.1 GB/s" in report.field("dma") and "128 packets on 16 DMA engines" in report.field("dma")
    report.page.mouse.move(*report.bar(5))
    assert report.field("operation") == "trigger dma_copy" and report.attribute("duration") == 48_500


def test_clicking_pins_and_leads_to_what_was_waited_for(opened: Opener) -> None:
    report = opened(profile_of(matmul_timeline()))
    report.page.mouse.click(*report.bar(3))
    report.page.mouse.move(5, 5)
    assert report.attribute("issue") == 3
    report.page.locator("#panel [data-field='waited-for'] button").click()
    assert report.attribute("issue") == 2
    report.page.locator("#timeline").press("Escape")
    assert "Longest on the critical path" in report.page.locator("#panel").inner_text()


def test_wheel_buttons_and_drag_move_the_window(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    assert report.window() == (-launch_of(timeline), timeline.duration)
    x, y = report.bar(2)
    report.page.mouse.move(x, y)
    report.page.mouse.wheel(0, -120)
    report.page.wait_for_function("window.trnrt.view.to - window.trnrt.view.from < window.trnrt.view.whole")
    first, last = report.window()
    assert first > -launch_of(timeline) and last < timeline.duration
    assert report.attribute("issue") == 2, "the time under the pointer stays there"
    report.page.mouse.down()
    report.page.mouse.move(x - 60, y, steps=4)
    report.page.mouse.up()
    moved, _ = report.window()
    assert moved > first and report.window()[1] - moved == pytest.approx(last - first)
    report.page.get_by_role("button", name="Zoom in").click()
    assert report.window()[1] - report.window()[0] == pytest.approx((last - first) * 0.6)
    report.page.get_by_role("button", name="Fit").click()
    assert report.window() == (-launch_of(timeline), timeline.duration)


def test_everything_can_be_reached_by_keys(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    canvas = report.page.locator("#timeline")
    canvas.focus()
    canvas.press("+")
    zoomed = report.window()
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (timeline.duration + launch_of(timeline)))
    canvas.press("ArrowLeft")
    assert report.window()[0] < zoomed[0]
    canvas.press("0")
    assert report.window() == (-launch_of(timeline), timeline.duration)
    canvas.press("ArrowDown")
    assert report.attribute("issue") == 2, "the first bar of the first lane"
    canvas.press("ArrowDown")
    assert report.attribute("issue") == 3
    canvas.press("w")
    assert report.attribute("issue") == 2
    canvas.press("w")
    canvas.press("w")
    assert report.attribute("issue") == 0
    canvas.press("Shift+ArrowRight")
    assert report.attribute("issue") == 4, "the next of its row"


def test_hovering_a_tile_shows_when_it_lives(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    psum = [tile for tile in tile_spans(timeline) if tile.storage.buffer.value == "psum"]
    sbuf = [tile for tile in tile_spans(timeline) if tile.storage.buffer.value == "sbuf"]
    for memory, tiles in enumerate((sbuf, psum)):
        for number, tile in enumerate(tiles):
            report.page.mouse.move(*report.tile(memory, number))
            assert report.attribute("start", "memory-panel") == tile.start
            assert report.attribute("end", "memory-panel") == tile.end
            assert report.attribute("bytes", "memory-panel") == tile.storage.partition_bytes
            assert report.attribute("byte", "memory-panel") == tile.byte
    assert report.field("tile", "memory-panel") == "product"
    assert report.field("shape", "memory-panel") == "128 x 512 float32, PSUM"
    report.page.get_by_label("Whole capacity").check()
    report.page.mouse.move(*report.tile(0, 1))
    assert report.field("tile", "memory-panel").endswith("in matmul_kernel")


def test_what_is_alive_at_a_time_is_listed(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    canvas = report.page.locator("#memories canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    report.page.mouse.move(box["x"] + box["width"] * 0.96, box["y"] + 100)
    time = report.attribute("time", "memory-panel")
    alive = [
        tile for tile in tile_spans(timeline) if tile.start <= time < tile.end and tile.storage.buffer.value == "sbuf"
    ]
    assert report.attribute("bytes", "memory-panel") == sum(tile.storage.partition_bytes for tile in alive) > 0
    names = report.page.locator("#memory-panel .alive li span")
    assert names.count() == len(alive)
    assert f"{len(alive)} tile" in report.field("alive", "memory-panel")


def test_changes_of_memory_are_reached_by_keys(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    psum = report.page.locator("#memories canvas").nth(1)
    psum.focus()
    psum.press("ArrowDown")
    assert report.attribute("time", "memory-panel") == timeline.start[2]
    assert report.attribute("bytes", "memory-panel") == 2048
    assert "bank 0" in report.page.locator("#memory-panel .alive").inner_text()
    psum.press("ArrowDown")
    assert report.attribute("time", "memory-panel") == timeline.end[3]
    assert report.attribute("bytes", "memory-panel") == 0
    psum.press("ArrowUp")
    assert report.attribute("time", "memory-panel") == timeline.start[2]


def line_of(timeline: Timeline, issue: int) -> int:
    return timeline.program.instructions[timeline.instruction[issue]].line


def source_report(opened: Opener, **options: Any) -> tuple[Report, Profile]:
    """A report with real lines; the stores come from a helper's file."""
    program = matmul_program()
    store = program.instructions[-1]
    store.source = store.source._replace(file=str(Path(__file__).with_name("test_digits.py")), line=40)
    profile = profile_programs([program])
    return opened(profile, **options), profile


def test_a_clicked_line_shows_its_instructions(opened: Opener) -> None:
    report, profile = source_report(opened)
    line = line_of(profile.timeline, 2)
    row = report.page.locator(f"#source tr[data-line='{line}']")
    assert "nisa.nc_matmul(dst=product" in row.inner_text()
    use = next(use for use in profile.lines if use.line == line)
    assert f"{100 * use.share:.1f} %" in row.inner_text()
    row.click()
    assert report.page.evaluate("window.trnrt.state.line") == {"file": 0, "line": line}
    assert row.locator("button").get_attribute("aria-pressed") == "true"
    assert report.field("line") == f"line {line}" and "tensor" in report.field("busy")
    report.page.locator("#panel [data-field='show'] button").first.click()
    assert report.attribute("issue") == 2
    row.click()
    assert report.page.evaluate("window.trnrt.state.line") == {"file": 0, "line": line}, (
        "the instruction is let go first"
    )
    report.page.locator("#source").press("Escape")
    assert report.page.evaluate("window.trnrt.state.line") is None


def test_a_clicked_instruction_shows_its_line(opened: Opener) -> None:
    report, profile = source_report(opened)
    report.page.mouse.click(*report.bar(3))
    line = line_of(profile.timeline, 3)
    assert report.page.locator("#source tr.own").get_attribute("data-line") == str(line)
    report.page.mouse.click(*report.bar(4))
    assert report.page.locator("#files [aria-selected='true']").inner_text() == "test_digits.py"
    assert report.page.locator("#source tr.own").get_attribute("data-line") == "40"
    report.page.locator("#files button").first.click()
    assert report.page.locator("#source tr.calls").get_attribute("data-line") == str(line_of(profile.timeline, 4))


def test_the_source_can_be_used_by_keys(opened: Opener) -> None:
    report, profile = source_report(opened)
    lines = [use.line for use in profile.lines if use.file == profile.timeline.program.file]
    report.page.locator("#source button").first.focus()
    report.page.keyboard.press("ArrowDown")
    report.page.keyboard.press("Enter")
    assert report.page.evaluate("window.trnrt.state.line.line") == lines[1]
    report.page.keyboard.press("Escape")
    report.page.locator("#files button").first.focus()
    report.page.keyboard.press("ArrowRight")
    assert report.page.locator("#files [aria-selected='true']").inner_text() == "test_digits.py"


def test_the_first_sentence_leads_to_its_lines(opened: Opener) -> None:
    report, profile = source_report(opened)
    assert profile.bottleneck is not None
    assert profile.bottleneck.sentence in report.page.locator("#bottleneck").inner_text()
    report.page.locator("#bottleneck-links button").first.click()
    assert report.page.evaluate("window.trnrt.state.line.line") == profile.bottleneck.places[0].line


def test_hostile_source_is_shown_and_not_run(opened: Opener, tmp_path: Path) -> None:
    path = tmp_path / "evil.py"
    path.write_text(f"def f():\n    x = {HOSTILE!r}\n")
    program = matmul_program()
    for instruction in program.instructions:
        instruction.source = instruction.source._replace(file=str(path), line=2)
    report = opened(profile_programs([program]))
    report.page.mouse.click(*report.bar(2))
    assert HOSTILE in report.page.locator("#source tr.own code").inner_text().replace("\\", "")
    assert report.page.title() == "matmul" and report.page.locator("img").count() == 0


def test_another_run_lies_under_the_timeline(opened: Opener) -> None:
    slow, fast = profile_programs([matmul_program("trn1")]), profile_programs([matmul_program()])
    runs = [run_of_profile(f"matmul on {p.target}", "k.py", p, call_document("matmul", "", p)) for p in (slow, fast)]
    report = opened(fast, difference=compare_runs(*runs))
    launch = max(launch_of(slow.timeline), launch_of(fast.timeline))
    assert report.window() == (-launch, max(slow.timeline.duration, fast.timeline.duration))
    for issue in (1, 2):
        report.page.mouse.move(*report.before(issue))
        assert report.attribute("start") == slow.timeline.start[issue]
        assert report.field("lane").startswith("before, in k.py: ")
    report.page.mouse.move(*report.bar(2))
    assert report.attribute("start") == fast.timeline.start[2]
    text = report.page.locator("#against").inner_text()
    assert "Against k.py" in text and "nisa.nc_matmul" in text
    row = report.page.locator(f"#source tr[data-line='{line_of(fast.timeline, 1)}'] .change").inner_text()
    assert row.startswith(("+", "-"))


def test_colours_switch_between_steps_and_operations(opened: Opener) -> None:
    report = opened(profile_of(matmul_timeline()))
    legend = report.page.locator("#legend button")
    assert all(name.startswith("line ") for name in legend.all_inner_texts())
    report.page.get_by_label("By operation").check()
    assert legend.all_inner_texts() == ["dma_copy", "nc_matmul", "tensor_copy"]
    legend.nth(1).click()
    assert legend.nth(1).get_attribute("aria-pressed") == "true"


def test_a_step_of_the_table_is_shown_in_the_timeline(opened: Opener) -> None:
    timeline = matmul_timeline()
    report = opened(profile_of(timeline))
    report.page.locator("[data-step='2']").click()
    first, last = report.window()
    assert first <= timeline.start[2] and timeline.end[2] <= last < timeline.duration


def test_several_cores_have_a_selector(opened: Opener) -> None:
    slow, fast = matmul_timeline(), paced(matmul_program(), pace=90_000)
    report = opened(profile_of(slow, fast))
    assert report.page.locator("#core option").all_inner_texts() == ["0", "1"]
    report.page.locator("#core").select_option("1")
    assert report.window() == (-launch_of(fast), fast.duration)
    report.page.mouse.move(*report.bar(4))
    assert report.attribute("start") == fast.start[4]
    assert opened(profile_of(slow)).page.locator("#core").is_hidden()


def test_hostile_names_are_shown_and_not_run(opened: Opener) -> None:
    program = matmul_program()
    for instruction in program.instructions:
        instruction.name = HOSTILE
    for storage in program.storages:
        storage.name = HOSTILE
    report = opened(profile_of(paced(program)), title=HOSTILE)
    report.page.mouse.move(*report.bar(2))
    assert report.field("name") == HOSTILE
    report.page.mouse.move(*report.tile(1, 0))
    assert report.field("tile", "memory-panel") == HOSTILE
    assert report.page.locator("h1").inner_text() == HOSTILE == report.page.title()
    assert report.page.locator("img").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_nothing_is_wider_than_the_window(opened: Opener, width: int, scheme: str) -> None:
    report = opened(profile_of(matmul_timeline()), viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert report.page.evaluate("document.documentElement.scrollWidth") == width
    report.page.mouse.move(*report.bar(3))
    assert report.attribute("issue") == 3


def test_a_model_with_its_predicted_timeline(opened: Opener, tmp_path: Path) -> None:
    session = trnrt.InferenceSession(MODELS / "digits_cnn.onnx")
    plan = session.plan(8)
    path = tmp_path / "digits_cnn.py"
    path.write_text(plan.source, encoding="utf-8")
    specs = [Spec(tensor.shape, tensor.dtype) for tensor in plan.inputs]
    specs += [Spec(weight.shape, weight.dtype) for weight in plan.weights.values()]
    timeline = schedule(trace(load_entry(plan, path, plan.source.encode()), *specs, target=plan.target))
    report = opened(profile_of(timeline), title="digits_cnn")
    longest = max(range(len(timeline.start)), key=lambda issue: timeline.end[issue] - timeline.start[issue])
    report.page.mouse.move(*report.bar(longest))
    assert report.attribute("issue") == longest
    assert report.attribute("duration") == timeline.end[longest] - timeline.start[longest]
