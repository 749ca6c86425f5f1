"""The container files of deploy/ can be built from what is in the repository, and make the image that is promised."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from deploying import DEPLOY, ROOT, SERVERS, Containerfile, containerfile

from trnrt.cli import app
from trnrt.neuron.device import WORKER_VARIABLE
from trnrt.neuron.releases import load_releases
from trnrt.serve.settings import ServeSettings, variable_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(params=SERVERS.values())
def server(request: pytest.FixtureRequest) -> Containerfile:
    return containerfile(request.param)


def sent() -> set[str]:
    """What .dockerignore lets into a build, at the top of the repository."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[lines.index("*") + 1 :] and "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def copied(server: Containerfile) -> set[str]:
    """What is taken from the repository."""
    found = {source for i in server.all("COPY") if "--from=" not in i.value for source in i.operands[:-1]}
    assert found
    return found


def test_every_file_is_looked_at() -> None:
    assert {path.name for path in DEPLOY.glob("Containerfile.*")} == {*SERVERS.values(), "Containerfile.models"}


def test_what_is_copied_is_there_and_sent(server: Containerfile) -> None:
    assert [source for source in copied(server) if not (ROOT / source).exists()] == []
    assert copied(server) == sent()


def test_the_wheel_can_be_built_from_what_is_copied(server: Containerfile) -> None:
    """All that pyproject.toml names, and what the links in the package point to."""
    named = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    links = {path.resolve() for path in (ROOT / "trnrt").iterdir() if path.is_symlink()}
    assert len(links) == 2
    assert named | {str(path.relative_to(ROOT)) for path in links} <= copied(server)


def test_stages_that_are_copied_from_are_there(server: Containerfile) -> None:
    stages = {stage[0].value.partition(" AS ")[2] for stage in server.stages[:-1]}
    named = {found for i in server.all("COPY") for found in re.findall(r"--from=(\S+)", i.value)}
    assert named and named == stages


def test_extras_are_those_of_the_project(server: Containerfile) -> None:
    named = {found for i in server.all("RUN") for found in re.findall(r"trnrt-\*\.whl\)\[([\w,]+)\]", i.value)}
    (extras,) = named
    assert set(extras.split(",")) == {"serve", "otel"} <= set(PROJECT["optional-dependencies"])


def test_bases_have_versions(server: Containerfile) -> None:
    """Both stages have one base, or the virtual environment of the first has no interpreter in the second."""
    bases = {stage[0].value.partition(" AS ")[0] for stage in server.stages}
    (base,) = bases
    assert re.fullmatch(r"[a-z0-9./-]+:\d[\w.-]+", base)
    version = re.search(r"python(?::|)(3\.\d+)", " ".join(i.value for i in (*server.all("FROM"), *server.all("RUN"))))
    assert version and f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_it_runs_as_nobody_in_particular(server: Containerfile) -> None:
    user = server.last("USER").value
    number, _, group = user.partition(":")
    assert number.isdigit() and group.isdigit() and int(number) > 0 and int(group) > 0
    words = [i.word for i in server.stages[-1]]
    assert {"RUN", "COPY", "ADD"}.isdisjoint(words[words.index("USER") :])
    (made,) = [i.value for i in server.all("RUN") if "useradd" in i.value]
    assert f"--uid {number} --gid {group}" in made and f"--owner {number} --group {group} /cache" in made


def test_the_entry_point_is_a_verb(server: Containerfile) -> None:
    """In exec form: a shell between would not pass SIGTERM on."""
    program, verb = server.last("ENTRYPOINT").listed
    assert program in PROJECT["scripts"]
    assert verb in app.all_verbs()
    assert server.last("STOPSIGNAL").value == "SIGTERM"


def test_the_port_is_the_servers(server: Containerfile) -> None:
    port = ServeSettings.model_fields["port"].default
    assert server.last("EXPOSE").value == str(port)
    # What the health check asks where TRNRT_PORT is not set.
    assert f"os.environ.get('TRNRT_PORT') or {port}" in server.health[-1]


def test_what_is_set_exists_and_is_no_key(server: Containerfile) -> None:
    known = {variable_of(field) for field in ServeSettings.model_fields} | {"TRNRT_CACHE", WORKER_VARIABLE}
    ours = {name for name in server.environment if name.startswith("TRNRT_")}
    assert ours and ours <= known - {"TRNRT_API_KEYS", "TRNRT_INSECURE"}
    assert server.environment["TRNRT_MODEL_DIR"] == "/models"
    assert server.all("ARG") == []


def test_onnxruntime_reports_to_nobody(server: Containerfile) -> None:
    assert server.environment["ORT_DISABLE_TELEMETRY"] == "1"


def test_the_models_go_where_the_server_looks(server: Containerfile) -> None:
    models = containerfile("Containerfile.models")
    assert models.last("COPY").operands == [".", server.environment["TRNRT_MODEL_DIR"] + "/"]
    assert {i.word for i in models.stages[-1]} == {"FROM", "COPY"}


def test_aws_packages_are_those_that_the_doctor_wants() -> None:
    """nrtpy in the worker's own environment, and nothing that compiles."""
    text = " ".join(i.value for i in containerfile("Containerfile.neuron").all("RUN"))
    releases = load_releases()
    needs = releases.route("neff")
    (nrtpy,) = needs.worker
    assert f"--extra-index-url {releases.index}     {nrtpy.name}=={nrtpy.install} " in text
    assert not [package.name for package in needs.compiling if package.name in text]
    for package in releases.system:
        pinned = f"'{package.name}={releases.system_version(package.name, needs.sdk)}*'"
        assert (pinned in text) == (package.name in ("aws-neuronx-runtime-lib", "aws-neuronx-tools")), package.name
    numpy = next(package for package in releases.packages if package.name == "numpy")
    assert f"'numpy>={numpy.at_least},<{numpy.below}'" in text


def test_both_servers_are_made_alike() -> None:
    """What is in both is the same, so that what was seen of one holds for the other."""
    cpu, neuron = (containerfile(name) for name in ("Containerfile.cpu", "Containerfile.neuron"))
    for word in ("USER", "WORKDIR", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"):
        assert cpu.last(word) == neuron.last(word)
    assert cpu.environment.items() - {("PATH", cpu.environment["PATH"])} <= neuron.environment.items()


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    named = {Path(found).name for found in re.findall(r"`?deploy/[\w.-]*\w(?![\w./-])", page)}
    assert named == {path.name for path in DEPLOY.iterdir()}
