"""The preparation of pictures that the query of ``/predict`` asks for; the model's own holds for the rest.

value = (pixel * scale - mean) / std          pixels are 0 to 255
"""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams

from trnrt.errors import InputError
from trnrt.inputs.fitting import FITS
from trnrt.inputs.images import CHANNELS, LAYOUTS, ImageOptions, parse_numbers
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import value_text

WORDS = {"layout": tuple(LAYOUTS), "color": tuple(CHANNELS), "fit": FITS}
"""The parameters that take a word, with the words."""
NUMBERS = {"scale": 1, "mean": max(CHANNELS.values()), "std": max(CHANNELS.values())}
"""The parameters that take numbers, with the most of them."""
LARGEST = 1e6
"""The largest number, and one divided by the smallest std: others make infinity of float16's and float32's inputs."""
_ADVICE = "give --"


def image_options(query: QueryParams) -> ImageOptions:
    """The query's options; RequestError for a value that isn't allowed."""
    found: dict[str, Any] = {}
    for name, words in WORDS.items():
        if (text := query.get(name)) is not None:
            if text not in words:
                raise RequestError(f"{name} is {value_text(text)}; it is {', '.join(words[:-1])} or {words[-1]}")
            found[name] = text
    for name, most in NUMBERS.items():
        if (text := query.get(name)) is not None:
            numbers = _numbers_of(name, text, most)
            found[name] = numbers[0] if most == 1 else numbers
    return ImageOptions(**found)


def _numbers_of(name: str, text: str, most: int) -> tuple[float, ...]:
    """A parameter's numbers; RequestError for anything else."""
    try:
        numbers = parse_numbers(text)
    except ValueError:
        numbers = ()
    least = 1 / LARGEST if name == "std" else 0.0
    if not 1 <= len(numbers) <= most or not all(least <= abs(number) <= LARGEST for number in numbers):
        wanted = "a number" if most == 1 else f"1 to {most} numbers with commas between"
        from_least = f" of {least:g} or more," if least else ""
        raise RequestError(f"{name} is {value_text(text)}; it is {wanted},{from_least} up to {LARGEST:g}")
    return numbers


def advice_text(error: InputError) -> str:
    """The error with its hint. A hint to give a flag names the query's parameter instead; what follows a semicolon is
    for the command line alone, and is left out."""
    hint = error.hint or ""
    if not hint.startswith(_ADVICE):
        return str(error)
    advice = hint.removeprefix(_ADVICE).partition(";")[0].replace("--", "")
    return f"{error}; give the query's {advice}"
