"""Custom resources are checked by their operators' published schemas; tests/data/crds has trimmed copies.

``python tests/shared/crds.py CRD.yaml VERSION ORIGIN`` trims one: it keeps names, types and limits, and drops texts and
large parts. What was dropped is unknown here, so that a manifest can't use it unchecked. Lists of containers and
volumes are Kubernetes' own: check them as parts of a Pod.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FOLDER = Path(__file__).parents[1] / "data" / "crds"
_KEPT = {
    *("type", "enum", "required", "anyOf", "oneOf", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems"),
}
_OF_KUBERNETES = ("containers", "volumes")
_LARGEST = 1000
"""A part with more letters than that is dropped, unless it is on this way."""
_WAY = ("spec", "predictor", "model", "endpoints", "advanced", "horizontalPodAutoscalerConfig", "behavior")


def trim(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that refuses unknown fields, as the API server does when it validates strictly."""
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    if "properties" in schema:
        kept["properties"] = {}
        for name, part in schema["properties"].items():
            made = {"type": "array"} if name in _OF_KUBERNETES else trim(part)
            if name in _WAY or len(json.dumps(made)) <= _LARGEST:
                kept["properties"][name] = made
        kept["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if "items" in schema:
        kept["items"] = trim(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = trim(schema["additionalProperties"])
    return kept


def trim_definition(text: str, version: str, origin: str) -> str:
    """One version of a custom resource's definition, as JSON."""
    spec = yaml.safe_load(text)["spec"]
    (found,) = [one for one in spec["versions"] if one["name"] == version]
    schema = trim(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    schema["properties"].pop("status", None)
    made = {
        "apiVersion": f"{spec['group']}/{version}",
        "kind": spec["names"]["kind"],
        "origin": f"{origin} (Apache License 2.0), trimmed by tests/shared/crds.py",
        "schema": schema,
    }
    return json.dumps(made, indent=1) + "\n"


def validate(item: dict[str, Any]) -> None:
    """Raise ``jsonschema.ValidationError`` unless a custom resource fits its schema; KeyError if there is none."""
    known = {}
    for path in FOLDER.glob("*.json"):
        definition = json.loads(path.read_text(encoding="utf-8"))
        known[definition["apiVersion"], definition["kind"]] = definition["schema"]
    schema = known[item["apiVersion"], item["kind"]]
    jsonschema.Draft202012Validator(schema).validate(item)


if __name__ == "__main__":
    print(trim_definition(Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:]), end="")
