"""What the files of deploy/ say, read by parsers that are not ours: PyYAML and dockerfile-parse."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser
from kustomizing import build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = DEPLOY / "kustomize" / "overlays"
SERVERS = {"neuron": "Containerfile.neuron", "cpu": "Containerfile.cpu"}
"""The overlays, and the image that each one's pods run."""


@dataclass(frozen=True)
class Instruction:
    """One line of a container file: its word, and what follows, continued lines joined."""

    word: str
    value: str

    @property
    def listed(self) -> list[str]:
        """What is written in exec form, a list of texts."""
        found = json.loads(self.value)
        assert isinstance(found, list) and all(isinstance(part, str) for part in found)
        return found

    @property
    def operands(self) -> list[str]:
        """What is copied, and to where: the words that are no flags."""
        return [word for word in self.value.split() if not word.startswith("--")]


@dataclass(frozen=True)
class Containerfile:
    """A container file: its stages, each from a FROM to the next, and the environment of the last one."""

    name: str
    stages: tuple[tuple[Instruction, ...], ...]
    environment: dict[str, str]

    def last(self, word: str) -> Instruction:
        """The instruction of this word in the image itself; there is one."""
        (found,) = [instruction for instruction in self.stages[-1] if instruction.word == word]
        return found

    def all(self, word: str) -> list[Instruction]:
        """Those of every stage."""
        return [instruction for stage in self.stages for instruction in stage if instruction.word == word]

    @property
    def health(self) -> list[str]:
        """The command of HEALTHCHECK."""
        flags, _, command = self.last("HEALTHCHECK").value.partition("CMD ")
        assert all(flag.startswith("--") for flag in flags.split())
        return Instruction("CMD", command).listed


def containerfile(name: str) -> Containerfile:
    """A container file of deploy/."""
    parser = DockerfileParser(fileobj=io.BytesIO((DEPLOY / name).read_bytes()))
    stages: list[list[Instruction]] = [[]]
    for line in parser.structure:
        if line["instruction"] == "FROM":
            stages.append([])
        if line["instruction"] != "COMMENT":
            stages[-1].append(Instruction(line["instruction"], line["value"]))
    return Containerfile(name, tuple(tuple(stage) for stage in stages if stage), dict(parser.envs))


@dataclass(frozen=True)
class Manifest:
    """An overlay of deploy/kustomize, built: one object of each kind."""

    name: str
    objects: dict[str, dict[str, Any]]

    @property
    def deployment(self) -> dict[str, Any]:
        """Its spec."""
        spec: dict[str, Any] = self.objects["Deployment"]["spec"]
        return spec

    @property
    def pod(self) -> dict[str, Any]:
        """The spec of its pods."""
        spec: dict[str, Any] = self.deployment["template"]["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        """The one container of a pod."""
        (container,) = self.pod["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def image(self) -> Containerfile:
        """What it is made from."""
        return containerfile(SERVERS[self.name])

    @property
    def environment(self) -> dict[str, str]:
        """The container's: the image's, and the pod's over it; what is a secret is "key"."""
        told = {item["name"]: item.get("value", "key") for item in self.container["env"]}
        return {**self.image.environment, **told}

    @property
    def file(self) -> str:
        """The settings' file."""
        (text,) = self.objects["ConfigMap"]["data"].values()
        return str(text)

    @property
    def told(self) -> dict[str, Any]:
        """What the settings' file says."""
        return tomllib.loads(self.file)

    @property
    def mounts(self) -> dict[str, tuple[dict[str, Any], bool]]:
        """Where each volume is mounted: the volume, and whether the container may write there."""
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        mounts = self.container["volumeMounts"]
        return {mount["mountPath"]: (volumes[mount["name"]], not mount.get("readOnly", False)) for mount in mounts}

    @property
    def probes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each probe by its kind."""
        return ((kind, self.container[kind]) for kind in ("startupProbe", "readinessProbe", "livenessProbe"))


def manifest(name: str) -> Manifest:
    """An overlay, built."""
    found = build(OVERLAYS / name)
    objects = {item["kind"]: item for item in found}
    assert len(objects) == len(found)
    return Manifest(name, objects)
