"""A small renderer of deploy/kustomize, for machines without kubectl: it does as ``kubectl kustomize`` does.

It knows what these folders use, and refuses the rest. ``tests/project/test_kustomize.py`` compares it with kubectl
where that is there. Names of generated ConfigMaps get no hash here.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Item = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "resources", "components", "images", "configMapGenerator", "patches"}


def build(folder: Path) -> list[Item]:
    """The objects of a kustomization."""
    return _build(folder, [])


def _build(folder: Path, items: list[Item]) -> list[Item]:
    """``items`` and those of a folder, changed as it says."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert set(told) <= _KNOWN, f"{folder}: {set(told) - _KNOWN} is not known here"
    for name in told.get("resources", ()):
        path = folder / name
        items = items + (build(path) if path.is_dir() else _read(path))
    items = items + [_config_map(folder, one) for one in told.get("configMapGenerator", ())]
    for name in told.get("components", ()):
        assert yaml.safe_load((folder / name / "kustomization.yaml").read_text(encoding="utf-8"))["kind"] == "Component"
        items = _build(folder / name, items)
    for patch in told.get("patches", ()):
        assert set(patch) == {"path"}
        for one in _read(folder / patch["path"]):
            (place,) = [k for k, item in enumerate(items) if _identity(item) == _identity(one)]
            items = [*items[:place], merge(items[place], one), *items[place + 1 :]]
    return [_with_images(item, told.get("images", ())) for item in items]


def _read(path: Path) -> list[Item]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _identity(item: Item) -> tuple[str, str, str]:
    return item["apiVersion"], item["kind"], item["metadata"]["name"]


def _config_map(folder: Path, told: Item) -> Item:
    assert set(told) == {"name", "files", "options"} and set(told["options"]) == {"labels"}
    data = {name: (folder / name).read_text(encoding="utf-8") for name in told["files"]}
    metadata = {"name": told["name"], "labels": told["options"]["labels"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def merge(item: Any, patch: Any) -> Any:
    """Kubernetes' strategic merge: objects by key, lists by ``name`` if theirs have one; null removes."""
    if isinstance(item, dict) and isinstance(patch, dict):
        merged = {key: merge(item.get(key), value) for key, value in patch.items() if value is not None}
        return {key: value for key, value in item.items() if key not in patch} | merged
    if isinstance(item, list) and all(isinstance(one, dict) and "name" in one for one in (*item, *patch)):
        found = {one["name"]: one for one in item}
        new = {one["name"]: merge(found.get(one["name"]), one) for one in patch}
        # kubectl puts new ones first.
        return [
            *(one for name, one in new.items() if name not in found),
            *(new.get(n, one) for n, one in found.items()),
        ]
    return copy.deepcopy(patch)


def _with_images(item: Any, images: Any) -> Any:
    """Every container's image that has one of these names, with its new name and tag."""
    if isinstance(item, list):
        return [_with_images(one, images) for one in item]
    if not isinstance(item, dict):
        return item
    made = {key: _with_images(value, images) for key, value in item.items()}
    for image in images:
        if made.get("image") == image["name"]:
            made["image"] = f"{image['newName']}:{image['newTag']}"
    return made
