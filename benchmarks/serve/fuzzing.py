"""``python -m benchmarks.serve.fuzzing [COUNT]``: send random requests to a real server, and check every answer.

Half are HTTP, up to four of them one behind the other on a connection, half gRPC calls. No answer may be our own fault
(500, UNKNOWN, INTERNAL); 503 and 504 must say one of the known causes; every answer has a request id, and every failure
the one form. One request in four is right, and its answer's numbers must be. In the end the server is alive, has not
grown, and its log has no traceback.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks import ROOT
from benchmarks.command import command_line, fail_unless
from benchmarks.serve.mutating import FACTORS, KEYS, Sent, right_request, wrong_request
from benchmarks.serve.servers import Server, serving
from benchmarks.serve.wire import Answer, WireError, take
from trnrt.commands.exits import call as run_command
from trnrt.commands.verbs import argument, option
from trnrt.report.console import say

if TYPE_CHECKING:
    from benchmarks.serve.fuzzing_calls import Call, Ended

AT_ONCE = 12
"""Connections, and gRPC calls, at once: more than the server's limit of requests, so that some get 503."""
LIMITS = ("--max-body-mib=1", "--max-json-mib=1", "--max-rows=64", "--max-batch=4", "--max-concurrency=16")
MORE_LIMITS = ("--max-queue=8", "--max-header-bytes=8192", "--max-connections=64", "--request-timeout=20")
CAUSES = re.compile(
    "is not ready, but|not ready: |the model '.*' is (unloaded|unloading|loading)|answers \\d+ requests already"
    "|bodies of the requests .* take|has \\d+ connections already|requests wait on this connection"
    "|no answer within .* s, the limit for this request|took longer than .* s, the (server's limit|call's deadline)"
    "|message did not arrive within"
)
"""The causes that an answer of 503 or 504 may state; it must contain one of these texts."""
NAN = "NaN or infinity"
"""The one cause of a 500, which is not the server's fault: JSON can't hold an output. It is counted apart."""
CUT_SHORT = "Internal error from Core"
"""grpc's client, not the server, ends a stream so if the server refused it before the client had written its message.
What the server said of it is in its log, which is checked, too."""
ANSWER_S, SILENCE_S = 60.0, 0.3
"""The longest time of an answer, and the wait for an answer to bytes that are no HTTP, seconds."""
GROWTH_MIB = 96.0
"""The most that the server may grow after the first tenth of the requests: heaps, and a process that reads JSON."""
TEXTS = 400
_GRAPH = "(float[N,4] x) => (float[N,4] y) {{ {} }}"


@dataclass
class Found:
    """The outcome of a run: answers by protocol and status, the number of right ones, and the faults."""

    statuses: Counter[str] = field(default_factory=Counter)
    right: int = 0
    faults: list[str] = field(default_factory=list)
    sent: int = 0
    growth_mib: float = 0.0

    def fault(self, what: str, *about: object) -> None:
        """Note something that must not be."""
        self.faults.append(": ".join([what, *(repr(one)[:TEXTS] for one in about)]))

    def document(self) -> dict[str, Any]:
        """The counts, and the first faults, as JSON."""
        return {
            "sent": self.sent,
            "right": self.right,
            "growth_mib": round(self.growth_mib, 1),
            "answers": dict(sorted(self.statuses.items())),
            "faults": len(self.faults),
            "first_faults": self.faults[:20],
        }


# -- HTTP --------------------------------------------------------------------------------------------------------------


async def send_requests(port: int, rng: random.Random, found: Found) -> int:
    """Send up to four requests on one connection, and check the answers; how many there were."""
    sent = [right_request(rng) if rng.random() < 0.25 else wrong_request(rng) for _ in range(rng.choice((1, 1, 2, 4)))]
    bent = any(one.bent for one in sent)
    data = b"".join(one.wire(last=one is sent[-1]) for one in sent)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        received = await _exchange(reader, writer, data, rng, SILENCE_S if bent else ANSWER_S)
    except TimeoutError:
        found.fault("no end of the answers", data)
        return len(sent)
    finally:
        writer.transport.abort()
    answers, rest = _split(received)
    if rest:
        found.fault("a partial answer", received[-TEXTS:], data)
    for place, answer in enumerate(answers):
        check_answer(answer, sent[place] if not bent and place < len(sent) else None, found)
    closed = answers and (answers[-1].header("connection") == "close" or bent)
    if not bent and (len(answers) > len(sent) or (len(answers) < len(sent) and not closed) or not answers):
        found.fault(f"{len(answers)} answers to {len(sent)} requests", data, received)
    return len(sent)


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, rng: random.Random, wait_s: float
) -> bytes:
    """Send ``data`` in a few pieces, and return what comes until the server closes; for bytes that are no HTTP until
    it is silent. TimeoutError if it neither answers nor closes."""
    received = b""
    cuts = sorted(rng.choices(range(len(data)), k=rng.choice((0, 0, 2))))
    try:
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            writer.write(data[begin:end])
            await asyncio.sleep(0)
        while part := await asyncio.wait_for(reader.read(1 << 16), wait_s):
            received += part
    except ConnectionError:  # the server closed, and did not read all
        pass
    except TimeoutError:
        if wait_s == ANSWER_S:
            raise
    return received


def _split(received: bytes) -> tuple[list[Answer], bytes]:
    """The whole answers, and the rest. An informational one (100 Continue) is none."""
    answers: list[Answer] = []
    while received:
        if received.startswith(b"HTTP/1.1 1"):
            received = received.partition(b"\r\n\r\n")[2]
            continue
        try:
            answer, received = take(received)
        except WireError:
            break
        if answer is None:
            break
        answers.append(answer)
    return answers, received


def check_answer(answer: Answer, sent: Sent | None, found: Found) -> None:
    """Check an answer; ``sent``: its request, if that is known."""
    about = (answer.head, answer.body, sent)
    found.statuses[f"HTTP {answer.status}"] += 1
    if not answer.header("x-request-id"):
        found.fault("no request id", *about)
    if answer.status < 400:
        if sent is not None and sent.factors:
            if _is_right(answer, sent):
                found.right += 1
            else:
                found.fault("a wrong answer", *about)
        return
    try:
        told = json.loads(answer.body)
    except ValueError:
        told = None
    if not (isinstance(told, dict) and list(told) == ["error"] and told["error"]):
        found.fault("not the form of an error", *about)
        return
    if sent is not None and sent.factors and answer.status not in (429, 503):
        found.fault("a right request was refused", *about)
    _check_cause(answer.status, str(told["error"]), about, found)


def _check_cause(status: int, text: str, about: Sequence[object], found: Found) -> None:
    if (status == 500 and NAN not in text) or status > 505 or (status in (503, 504) and not CAUSES.search(text)):
        found.fault(f"{status} for no known cause", text, *about)


def _is_right(answer: Answer, sent: Sent) -> bool:
    """True if the answer's numbers are those of the request."""
    length = answer.header("inference-header-content-length")
    told = json.loads(answer.body if length is None else answer.body[: int(length)])
    factors = sent.factors
    if "outputs" in told:
        factors = FACTORS[told["model_version"]]
        if not set(factors) <= set(sent.factors) or told.get("id") != "7":
            return False
        (tensor,) = told["outputs"]
        numbers = tensor.get("data")
        if numbers is None and length is not None:
            blob = answer.body[int(length) :]
            numbers = struct.unpack(f"<{len(blob) // 4}f", blob)
    else:
        numbers = [float(one) for one in _flatten(told["predictions"])]
    return any(list(numbers) == [factor * number for number in sent.numbers] for factor in factors)


def _flatten(value: Any) -> list[Any]:
    return [one for item in value for one in _flatten(item)] if isinstance(value, list) else [value]


# -- gRPC --------------------------------------------------------------------------------------------------------------


async def send_call(channel: Any, rng: random.Random, found: Found) -> int:
    """Make one call, and check its end; always 1."""
    from benchmarks.serve import fuzzing_calls

    call = fuzzing_calls.right_call(rng) if rng.random() < 0.25 else fuzzing_calls.wrong_call(rng)
    ended = await fuzzing_calls.make_call(channel, call)
    found.statuses[f"gRPC {ended.code.name}"] += 1
    check_end(call, ended, found)
    if call.factors and ended.code.name == "OK":
        if fuzzing_calls.is_right(call, ended.answers[0]):
            found.right += 1
        else:
            found.fault("a wrong answer", call, ended)
    return 1


def check_end(call: Call, ended: Ended, found: Found) -> None:
    """Check how a call ended."""
    code, about = ended.code.name, (ended, call)
    if code == "CANCELLED" and call.cancel:
        return
    if (code == "DEADLINE_EXCEEDED" and call.timeout < 1) or ended.text == CUT_SHORT:
        return
    if not ended.identity:
        found.fault("no request id", *about)
    if code != "OK" and not ended.text:
        found.fault("no text", *about)
    if call.factors and code not in ("OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"):
        found.fault("a right call was refused", *about)
    status = {"UNKNOWN": 500, "INTERNAL": 500, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504, "CANCELLED": 500}
    _check_cause(status.get(code, 200), ended.text, about, found)


# -- all of it ---------------------------------------------------------------------------------------------------------


async def send_all(server: Server, grpc_address: str, count: int, seed: int, found: Found) -> None:
    """Send half of ``count`` requests over HTTP, and half over gRPC, ``AT_ONCE`` of each at once."""
    import grpc

    lowest, alone = 0, [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(grpc_address, options=alone) for _ in range(4)]

    async def work(number: int, share: int) -> None:
        nonlocal lowest
        rng, done = random.Random(f"{seed} {number}"), 0
        while done < share:
            if number % 2:
                more = await send_requests(server.port, rng, found)
            else:
                more = await send_call(channels[number // 2 % len(channels)], rng, found)
            done, found.sent = done + more, found.sent + more
            if found.sent > count // 10 and found.sent % 100 < more:
                held = server.resident()
                lowest = lowest or held
                found.growth_mib = max(found.growth_mib, (held - lowest) / 2**20)

    try:
        await asyncio.gather(*(work(number, -(-count // (2 * AT_ONCE))) for number in range(2 * AT_ONCE)))
    finally:
        for channel in channels:
            await channel.close()


@contextmanager
def fuzzed_server(folder: Path) -> Iterator[Server]:
    """A server of two small models with small limits and keys: one model has two versions and a canary. A third one is
    there to be unloaded."""
    import onnx

    models = folder / "models"
    graphs = {"counting/1/model": "y = Add(x, x)", "counting/2/model": "d = Add(x, x)\n y = Add(d, x)"}
    for name, graph in {**graphs, "spare": "y = Relu(x)"}.items():
        path = models / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\ng {_GRAPH.format(graph)}')
        onnx.save(made, path)
    more = {"user": "", "few": 'requests_per_second = 5\nmodels = ["counting"]\n', "ops": "admin = true\n"}
    tables = (f'[key.{n}]\nsha256 = "{hashlib.sha256(KEYS[n].encode()).hexdigest()}"\n{t}' for n, t in more.items())
    config = folder / "server.toml"
    config.write_text("\n".join(tables), encoding="utf-8")
    flags = ["--model-dir", str(models), "--config", str(config), "--grpc-port=0", "--admin", "--canary=counting:2=50%"]
    arguments = [str(ROOT / "models" / "digits_ffnn.onnx"), *flags, "--versions=all", *LIMITS, *MORE_LIMITS]
    with serving(arguments, folder / "cache", ready_s=ANSWER_S * 2) as server:
        yield server


def check_log(log: str, found: Found) -> None:
    """Check what the server says of itself: nothing went wrong, and every request ended for a known cause."""
    for word in ("Traceback", '"unhandled"', "Segmentation", '"level": "critical"'):
        if word in log:
            at = log.index(word)
            found.fault(f"the log has {word}", log[max(0, at - 200) : at + 3000])
    for line in log.splitlines():
        if line.startswith("{") and '"event": "request"' in line:
            told = json.loads(line)
            _check_cause(told["status"], told.get("error", ""), (line,), found)


def fuzz(folder: Path, count: int, seed: int) -> Found:
    """Start a server, send it ``count`` requests, and return what came."""
    found = Found()
    with fuzzed_server(folder) as server:
        address = re.search(r"gRPC on (\S+);", server.log.read_text(errors="replace"))
        assert address is not None
        asyncio.run(send_all(server, address[1], count, seed, found))
        if server.get("/v2/health/live")[0] != 200:
            found.fault("the server is not alive")
        check_log(server.log.read_text(encoding="utf-8", errors="replace"), found)
        if server.stop() != 0:
            found.fault("the server did not end with 0")
    if found.growth_mib > GROWTH_MIB:
        found.fault(f"the server grew by {found.growth_mib:.0f} MiB")
    return found


def fuzz_server(
    count: Annotated[int, argument(metavar="[COUNT]", help="How many requests to send.")] = 2000,
    seed: Annotated[int, option("--seed", help="Another seed sends other requests.")] = 0,
) -> None:
    """Send random requests to a real server, and check every answer; exit 1 if one is not as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), count, seed)
    say(json.dumps(found.document(), indent=2))
    fail_unless(not found.faults)


app = command_line(fuzz_server)

if __name__ == "__main__":
    run_command(app)
