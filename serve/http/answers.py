"""Answers as JSON."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import dumps


class JSONAnswer(Response):
    """JSON in ASCII, which can represent any text; numbers must be finite."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return dumps(content)


def error_answer(problem: Problem) -> JSONAnswer:
    """The answer that every failure has."""
    return JSONAnswer({"error": problem.text}, problem.status, problem.headers)
