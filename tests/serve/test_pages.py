"""The pages, but for a browser: what is served with which headers, and what is in the files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from serving import MadeUpModel, MadeUpRepository, app_of, ask, doubling, error_of

from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.forms import MOST_FIELDS, form_of
from trnrt.serve.http.routes_pages import HEADERS, PAGES, POLICY, TYPES

FOLDER = Path(__file__).parents[2] / "serve" / "http" / "pages"
FILES = sorted(FOLDER.iterdir())
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".js"}
HTML = {path.name: path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".html"}
ALL_SCRIPTS = "\n".join(SCRIPTS.values())
VOID = {"meta", "link", "input", "wbr", "br", "img"}

PICTURE = {"image.layout": "NCHW", "image.scale": "0.5", "image.color": "L", "labels": '["a", "b"]'}


def get(path: str, *models: MadeUpModel, headers: dict[str, str] | None = None, **settings: Any) -> Any:
    return ask(app_of(MadeUpRepository(*(models or (doubling(),)), **settings)), "GET", path, headers=headers)


def model(*inputs: TensorMeta, metadata: dict[str, str] | None = None) -> MadeUpModel:
    return MadeUpModel("m", inputs, [TensorMeta("y", "float32", (-1, 2))], lambda feeds: {}, metadata=metadata)


# -- what is served ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PAGES, *(f"/pages/{path.name}" for path in FILES)])
def test_every_file_is_served_with_its_type_and_the_headers(path: str) -> None:
    response = get(path)
    name = PAGES.get(path, path.rpartition("/")[2])
    assert response.status_code == 200
    assert response.content == (FOLDER / name).read_bytes()
    assert response.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert {key: response.headers[key] for key in HEADERS} == HEADERS
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules.pop("default-src") == "'self'"
    assert rules.pop("img-src") == "'self' blob: data:"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert set(rules.values()) == {"'none'"}


def test_a_page_that_is_known_is_not_sent_again() -> None:
    tag = get("/").headers["etag"]
    again = get("/", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert get("/", headers={"If-None-Match": '"another"'}).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e%2fapp.py", "page.css%00", "__pycache__"])
def test_no_other_file_is_served(name: str) -> None:
    assert "there is no" in error_of(get(f"/pages/{name}"), 404)


def test_pages_need_no_key_and_what_they_show_does() -> None:
    for path in (*PAGES, "/pages/main.js"):
        assert get(path, api_keys="secret").status_code == 200
    error_of(get("/models.json", api_keys="secret"), 401)
    assert get("/models.json", api_keys="secret", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_what_the_page_shows_of_models_in_each_state() -> None:
    states = {
        "ready": None,
        "loading": None,
        "recovering": "the core hangs",
        "failed": "its Loop can't run",
        "unloaded": None,
    }
    models = [doubling(name=state) for state in states]
    for each, (state, reason) in zip(models, states.items(), strict=True):
        each.state, each.reason = state, reason
    response = get("/models.json", *models)
    assert response.headers["cache-control"] == "no-store"
    found = response.json()["models"]
    assert [(each["name"], each["state"], each["reason"]) for each in found] == [(s, s, r) for s, r in states.items()]
    assert found[0]["inputs"] == [{"name": "x", "dtype": "float32", "shape": [-1, 4]}]
    assert [found[0][key] for key in ("low_us", "predicted_us", "high_us")] == [{"1": 11.0}, {"1": 12.5}, {"1": 14.0}]
    assert all(each["inputs"] == [] and each["form"] is None for each in found[1:])


# -- which form a model gets ---------------------------------------------------------------------------------------


def test_a_picture_that_is_declared_is_drawn_or_chosen() -> None:
    form = form_of(model(TensorMeta("image", "float32", (-1, 1, 8, 9)), metadata=PICTURE).described)
    assert (form["kind"], form["height"], form["width"], form["color"], form["scale"]) == ("image", 8, 9, "L", 0.5)
    form = form_of(model(TensorMeta("image", "float32", (-1, 1, -1, -1)), metadata=PICTURE).described)
    assert (form["kind"], form["height"], form["width"]) == ("image", None, None)


def test_a_picture_that_is_not_declared_has_a_proposal_and_says_why() -> None:
    form = form_of(model(TensorMeta("image", "float32", (-1, 1, 8, 8))).described)
    assert (form["kind"], form["layout"], form["scale"], form["fit"]) == ("image", "NCHW", 1 / 255, "stretch")
    assert "how pixels (0 to 255) become input 'image'" in form["missing"]
    declared = form_of(model(TensorMeta("image", "float32", (-1, 1, 8, 9)), metadata=PICTURE).described)
    assert declared["missing"] is None


def test_what_can_be_no_picture_is_text_and_says_why() -> None:
    form = form_of(model(TensorMeta("volume", "float32", (-1, 7, 8, 8))).described)
    assert form["kind"] == "json" and "channels" in form["reason"]


def test_ids_and_masks_are_a_list_for_each_input() -> None:
    ids = [TensorMeta(name, "int64", (-1, 16)) for name in ("input_ids", "attention_mask")]
    form = form_of(model(*ids).described)
    assert form["kind"] == "json" and form["rows"] is True
    assert [(each["name"], each["datatype"], each["shape"]) for each in form["tensors"]] == [
        ("input_ids", "INT64", (-1, 16)),
        ("attention_mask", "INT64", (-1, 16)),
    ]


def test_the_output_with_the_classes_is_that_of_the_command_line() -> None:
    outputs = [TensorMeta("features", "float32", (-1, 512)), TensorMeta("probabilities", "float32", (-1, 10))]
    images = TensorMeta("image", "float32", (-1, 3, 8, 8))
    assert form_of(MadeUpModel("m", [images], outputs, lambda feeds: {}).described)["classes"] == "probabilities"
    outputs = [TensorMeta("depth", "float32", (-1, 1, 8, 8))]
    assert form_of(MadeUpModel("m", [images], outputs, lambda feeds: {}).described)["classes"] is None


def test_rows_have_a_field_for_each_number() -> None:
    form = form_of(model(TensorMeta("x", "float32", (-1, 2)), TensorMeta("n", "int64", (-1,))).described)
    assert [(each["title"], each["input"], each["place"], each["dtype"]) for each in form["columns"]] == [
        ("x[0]", "x", 0, "float32"),
        ("x[1]", "x", 1, "float32"),
        ("n", "n", None, "int64"),
    ]
    assert form_of(model(TensorMeta("age", "float32", (-1, 1))).described)["columns"][0]["title"] == "age"


@pytest.mark.parametrize("shape", [(-1, -1), (-1, 3, 4), (), (-1, MOST_FIELDS + 1)])
def test_what_is_no_row_is_text(shape: tuple[int, ...]) -> None:
    assert form_of(model(TensorMeta("x", "float32", shape)).described)["kind"] == "json"


# -- what is in the files ------------------------------------------------------------------------------------------


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and the text inside each kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> is there twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data.strip()

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


PARSED = {name: Parsed(text) for name, text in HTML.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_from_elsewhere_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.suffix[1:] in TYPES
    assert re.findall(r"https?:|\bwss?:|(?<=[\"'(])//|@import", text) == []
    assert len(text.splitlines()) <= 500


@pytest.mark.parametrize("name", HTML)
def test_pages_have_no_script_or_style_inside(name: str) -> None:
    page = PARSED[name]
    assert page.open == []
    assert page.of("style") == [] and page.texts.get("script", "") == ""
    assert all(each.get("type") == "module" and each.get("src") for each in page.of("script"))
    assert [key for _, each in page.elements for key in each if key == "style" or key.startswith("on")] == []
    local = [each.get("src") or each.get("href") for tag, each in page.elements if tag in ("script", "link")]
    assert all(link == "data:," or (FOLDER / str(link).removeprefix("pages/")).is_file() for link in local), local


def test_scripts_make_elements_and_never_markup() -> None:
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "Storage"):
        assert word not in ALL_SCRIPTS, word


def test_what_scripts_import_is_there() -> None:
    found = re.findall(r'^import \{([^}]+)\} from "\./([\w.]+)";$', ALL_SCRIPTS, re.MULTILINE)
    assert len(found) == ALL_SCRIPTS.count("import {") > 10
    for names, file in found:
        for name in names.split(","):
            assert re.search(rf"^export (async )?(function|class|const) {name.strip()}\b", SCRIPTS[file], re.MULTILINE)


def test_what_is_exported_is_used() -> None:
    exported = re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", ALL_SCRIPTS, re.MULTILINE)
    used = {
        name.strip()
        for names in re.findall(r"^import \{([^}]+)\}", ALL_SCRIPTS, re.MULTILINE)
        for name in names.split(",")
    }
    assert set(exported) - used == set()


@pytest.mark.parametrize("name", HTML)
def test_a_page_has_what_a_reader_needs(name: str) -> None:
    page = PARSED[name]
    assert page.of("html") == [{"lang": "en"}]
    assert page.texts["title"]
    assert len(page.of("main")) == len(page.of("h1")) == len(page.of("header")) == 1
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.of("meta")
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    names = [
        each.get("aria-label") or each.get("aria-labelledby") for tag in ("nav", "section") for each in page.of(tag)
    ]
    assert all(names)


@pytest.mark.parametrize("name", HTML)
def test_ids_are_there_once_and_what_refers_to_one_finds_it(name: str) -> None:
    page = PARSED[name]
    own = [each["id"] for _, each in page.elements if "id" in each]
    assert len(own) == len(set(own))
    made = set(re.findall(r'\bid: "([\w-]+)"', ALL_SCRIPTS))
    assert made.isdisjoint(own)
    for _, each in page.elements:
        for key in ("for", "aria-labelledby", "aria-describedby"):
            assert set((each.get(key) or "").split()) <= {*own, *made}
        if (each.get("href") or "").startswith("#"):
            assert str(each["href"])[1:] in own


@pytest.mark.parametrize("script", SCRIPTS)
def test_ids_that_scripts_look_for_are_there(script: str) -> None:
    known = {each["id"] for page in PARSED.values() for _, each in page.elements if "id" in each}
    known |= set(re.findall(r'\bid: "([\w-]+)"', ALL_SCRIPTS))
    looked_for = set(re.findall(r'\bat\("([\w-]+)"\)', SCRIPTS[script]))
    looked_for |= set(re.findall(r'(?:for|"aria-labelledby"|"aria-describedby"): "([\w-]+)"', SCRIPTS[script]))
    assert looked_for <= known


def test_every_input_of_a_page_has_a_label() -> None:
    for page in PARSED.values():
        labels = {each.get("for") for each in page.of("label")}
        assert {each.get("id") for each in page.of("input")} <= labels


# -- colours -------------------------------------------------------------------------------------------------------

# Which is on which, and how much they must differ at least (WCAG 2: text 4.5, edges of controls 3).
PAIRS = [
    *(("text", ground, 4.5) for ground in ("page", "card", "faint", "select")),
    *(("muted", ground, 4.5) for ground in ("page", "card", "faint", "select")),
    *(("accent", ground, 4.5) for ground in ("page", "card", "select")),
    ("on-accent", "accent", 4.5),
    ("warning", "warning-page", 4.5),
    ("good", "good-page", 4.5),
    ("good", "card", 4.5),
    ("bad", "bad-page", 4.5),
    ("bad", "card", 4.5),
    ("ink", "ink-page", 4.5),
    ("edge", "card", 3.0),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def palettes() -> dict[str, dict[str, str]]:
    text = (FOLDER / "page.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in re.findall(r":root \{([^}]+)\}", text))
    return {"light": light, "dark": {**light, **dark}}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("front", "ground", "least"), PAIRS)
def test_colours_can_be_told_apart(scheme: str, front: str, ground: str, least: float) -> None:
    palette = palettes()[scheme]
    one, other = sorted((luminance(palette[front]), luminance(palette[ground])))
    assert (other + 0.05) / (one + 0.05) >= least
