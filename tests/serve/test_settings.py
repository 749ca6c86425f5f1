"""Settings: where they come from, which wins, and what is told of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving import serve_flags

from trnrt.errors import OptionError
from trnrt.serve.settings import NO_FLAG, ServeSettings, flag_of, is_loopback, read_settings, variable_of


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests is no part of them."""
    for field in ServeSettings.model_fields:
        monkeypatch.delenv(variable_of(field), raising=False)


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "server.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_the_environment_which_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path, 'port = 1\nworkers = 2\nmax_batch = 3\nmodels = ["a.onnx", "b.onnx"]\n')
    monkeypatch.setenv("TRNRT_WORKERS", "4")
    monkeypatch.setenv("TRNRT_MAX_BATCH", "5")
    settings = read_settings({"config": path, "max_batch": 6})
    assert (settings.port, settings.workers, settings.max_batch, settings.max_queue) == (1, 4, 6, 256)
    assert settings.models == [Path("a.onnx"), Path("b.onnx")]


def test_the_environment_names_the_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CONFIG", str(config(tmp_path, "admin = true\n")))
    assert read_settings({}).admin


def test_texts_are_lists_with_commas_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_MODELS", "a.onnx, b.onnx")
    monkeypatch.setenv("TRNRT_API_KEYS", "one,,two ,")
    monkeypatch.setenv("TRNRT_LENGTHS", "32, 64")
    settings = read_settings({})
    assert settings.models == [Path("a.onnx"), Path("b.onnx")]
    assert [key.get_secret_value() for key in settings.api_keys] == ["one", "two"]
    assert "two" not in repr(settings) and settings.lengths == [32, 64]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"port": 70000}, "--port (TRNRT_PORT): it must be at most 65535, not 70000"),
        ({"workers": 0}, "--workers (TRNRT_WORKERS)"),
        ({"max_delay_ms": -1}, "--max-delay-ms (TRNRT_MAX_DELAY_MS)"),
        ({"max_delay_ms": float("nan")}, "--max-delay-ms (TRNRT_MAX_DELAY_MS)"),
        ({"shadow": 1.5}, "--shadow (TRNRT_SHADOW)"),
        ({"dtype": "int8"}, "--dtype (TRNRT_DTYPE)"),
        ({"lengths": [0]}, "--lengths (TRNRT_LENGTHS): it must be at least 1, not 0"),
        ({"lengths": [8], "pad": ["ids"]}, "--pad (TRNRT_PAD): pad 'ids' is no input with a number"),
        ({"pad": ["ids=1"]}, "--pad has no meaning without --lengths"),
    ],
)
def test_a_wrong_value_is_told_with_its_place_and_limit(flags: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_settings(flags)
    assert told in str(caught.value)


def test_a_key_is_never_told() -> None:
    with pytest.raises(OptionError) as caught:
        read_settings({"api_keys": {"sesame": 1}})
    assert "TRNRT_API_KEYS" in str(caught.value) and "sesame" not in str(caught.value)
    with pytest.raises(OptionError, match="a key is empty"):
        read_settings({"api_keys": [" "]})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1\n", "'prot', which is no setting; did you mean 'port'"),
        ("max_bach = 1\n", r"\.toml': the settings' file has 'max_bach', .*'max_batch'"),
        ("qqq = 1\n", "'qqq', which is no setting$"),
        ("port = \n", "is not TOML"),
        ("port = 'x'\n", "--port"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_settings({"config": config(tmp_path, text)})


def test_a_canary_without_a_version_is_told_once() -> None:
    with pytest.raises(OptionError) as caught:
        read_settings({"canary": ["digits=10%"]})
    text = str(caught.value)
    assert text.count("--canary") == text.count("digits=10%") == 1 and "2=10%" in text


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can't read the settings"):
        read_settings({"config": tmp_path / "none.toml"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_other_addresses_want_keys_or_to_be_told(host: str) -> None:
    with pytest.raises(OptionError, match="TRNRT_API_KEYS"):
        read_settings({"host": host})
    assert read_settings({"host": host, "insecure": True}).host == host
    assert read_settings({"host": host, "api_keys": ["k"]}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_wants_none(host: str) -> None:
    assert is_loopback(host) and read_settings({"host": host}).host == host


def test_every_setting_has_a_flag_that_says_the_same() -> None:
    flags = serve_flags()
    fields = {name: field for name, field in ServeSettings.model_fields.items() if name not in NO_FLAG}
    assert set(flags) - {"help"} == set(fields)
    for name, field in fields.items():
        flag = flags[name]
        assert flag.help and field.description is None, name
        assert flag.opts[0] == flag_of(name)
        assert flag.default is None
        shown = "batching" if name == "batching" else field.default
        nothing = shown is None or shown is False or shown == []
        wanted = True if nothing else str(shown)  # click shows no default of None
        assert flag.show_default == wanted, name


@pytest.mark.parametrize(("text", "budget"), [("none", 0), ("250", 250)])
def test_a_budget_of_instructions_from_the_environment(text: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_MAX_INSTRUCTIONS", text)
    assert read_settings({}).max_instructions == budget
    monkeypatch.setenv("TRNRT_MAX_INSTRUCTIONS", "-1")
    with pytest.raises(OptionError):
        read_settings({})
