"""Folders of models as other programs lay them out, with small files in the place of models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

__all__ = ["hub_tree", "llama_cpp_tree", "lm_studio_tree", "ollama_model", "written"]

_KIND = "application/vnd.ollama.image."


def hub_tree(
    folder: Path, repo: str, files: dict[str, bytes], commit: str = "a" * 40, links: bool = True
) -> Path:
    """A repository in a cache of huggingface_hub; its snapshot."""
    root = folder / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    for name, data in files.items():
        place = snapshot / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not links:
            place.write_bytes(data)
            continue
        blob = root / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(data)
        up = "../" * (2 + name.count("/"))
        place.symlink_to(f"{up}blobs/{blob.name}")
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(commit)
    return snapshot


def llama_cpp_tree(folder: Path, repo: str, file: str, tag: str, data: bytes) -> Path:
    """A model in the cache that llama.cpp had before it used the hub's."""
    folder.mkdir(parents=True, exist_ok=True)
    owner, name = repo.split("/")
    path = folder / f"{owner}_{name}_{file}"
    path.write_bytes(data)
    manifest = {"ggufFile": {"rfilename": file, "size": len(data)}}
    (folder / f"manifest={owner}={name}={tag}.json").write_text(json.dumps(manifest))
    return path


def ollama_model(
    folder: Path, name: str, layers: dict[str, bytes], form: str = "gguf", tag: str = "latest"
) -> Path:
    """A model of Ollama with the name HOST/NAMESPACE/MODEL; its file."""
    manifest = folder / "manifests" / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    config = _blob(folder, json.dumps({"model_format": form}).encode())
    listed = [{"mediaType": _KIND + kind, **_blob(folder, data)} for kind, data in layers.items()]
    whole = {"schemaVersion": 2, "config": {**config, "mediaType": "config"}, "layers": listed}
    manifest.write_text(json.dumps(whole))
    hexed = hashlib.sha256(layers.get("model", b"")).hexdigest()
    return folder / "blobs" / f"sha256-{hexed}"


def _blob(folder: Path, data: bytes) -> dict[str, object]:
    hexed = hashlib.sha256(data).hexdigest()
    path = folder / "blobs" / f"sha256-{hexed}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{hexed}", "size": len(data)}


def lm_studio_tree(folder: Path, repo: str, files: dict[str, bytes]) -> Path:
    """A model of LM Studio; its folder."""
    root = folder / repo
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


def written(folder: Path) -> dict[str, tuple[int, int, int]]:
    """The state of a tree: size, time and inode of everything in it."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        facts = path.lstat()
        found[str(path)] = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return found
