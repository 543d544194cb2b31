"""``llama-py pull, list, show, rm, verify, where``: the models of this machine, by name."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.cli.progress import ProgressLine
from llama_py.cli.sizes import shown_bytes
from llama_py.errors import DownloadError, ModelNotFoundError, ParameterError

if TYPE_CHECKING:
    from llama_py.models.hub_cache import HubCache
    from llama_py.models.stores.stored import StoredModel

__all__ = ["add_parsers"]

_NAME = "the name of a model, as llama-py list shows it"


def add_parsers(commands: Any) -> None:
    """Add the six to the subcommands of ``llama-py``."""
    pull = commands.add_parser(
        "pull",
        help="download models from the hub",
        description="Download models from the Hugging Face hub (or the one of HF_ENDPOINT), with "
        "all of their parts and the projector for pictures. What was interrupted goes on; what "
        "came is compared with the hub's digest; what another program has here already is used.",
    )
    pull.add_argument("names", nargs="+", metavar="OWNER/NAME[:QUANT]")
    pull.add_argument("--drafter", action="store_true", help="with the drafter of the repository")
    pull.set_defaults(run=_pull)
    listing = commands.add_parser(
        "list",
        help="list the models of this machine",
        description="List the models of this machine: those of the hub's cache, of llama.cpp, "
        "Ollama and LM Studio, and those below the folders of LLAMA_PY_MODELS_DIR.",
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="show where a model is from, and what belongs to it")
    show.add_argument("name", metavar="MODEL", help=_NAME)
    show.set_defaults(run=_show)
    remove = commands.add_parser(
        "rm",
        help="remove models from the hub's cache",
        description="Remove models from the hub's cache. Those of other programs are theirs.",
    )
    remove.add_argument("names", nargs="+", metavar="MODEL", help=_NAME)
    remove.set_defaults(run=_remove)
    verify = commands.add_parser(
        "verify",
        help="compare models with their digests",
        description="Read models, and compare them with the digests that their stores name. The "
        "exit code is 1 if one is damaged.",
    )
    verify.add_argument("names", nargs="*", metavar="MODEL", help=f"{_NAME} (default: all)")
    verify.add_argument("--repair", action="store_true", help="download what is damaged again")
    verify.set_defaults(run=_verify)
    where = commands.add_parser(
        "where",
        help="print the file of a model, or the folders that are searched",
        description="Print the file of a model; without a model, the folders that are searched.",
    )
    where.add_argument("name", nargs="?", metavar="MODEL", help=_NAME)
    where.set_defaults(run=_where)


def _pull(parsed: argparse.Namespace) -> int:
    from llama_py.models.downloads import pull
    from llama_py.models.references import read_reference

    for name in parsed.names:
        reference = read_reference(name)
        with ProgressLine(name, enabled=sys.stderr.isatty()) as line:
            paths = pull(reference, line.bytes, drafter=parsed.drafter)
        for path in filter(None, paths):
            print(path)
    return 0


def _list(parsed: argparse.Namespace) -> int:
    from llama_py.models.stores.catalog import stored_models

    models = sorted(stored_models(), key=lambda each: (bool(each.problem), each.name.lower()))
    if parsed.json:
        json.dump([_facts(each) for each in models], sys.stdout, indent=2)
        print()
        return 0
    if not models:
        print("there are no models here; llama-py pull OWNER/NAME downloads one", file=sys.stderr)
        return 0
    rows = [("NAME", "SIZE", "FROM", ""), *map(_row, models)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, size, source, rest in rows:
        line = f"{name:{widths[0]}}  {size:>{widths[1]}}  {source:{widths[2]}}  {rest}"
        print(line.rstrip())
    return 0


def _row(model: StoredModel) -> tuple[str, str, str, str]:
    size = shown_bytes(model.size) if model.size else "-"
    count = len(model.others)
    more = f"and {count} more {'copy' if count == 1 else 'copies'}" if count else ""
    return (
        _on_one_line(model.name),
        size,
        model.source,
        f"not loadable: {model.problem}" if model.problem else more,
    )


def _on_one_line(text: str) -> str:
    """A name of somebody's file, which may have marks of terminals and halves of characters."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _facts(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.source,
        "path": str(model.path),
        "size": model.size,
        "digest": f"sha256:{model.digest}" if model.digest else None,
        "projector": str(model.projector) if model.projector else None,
        "problem": model.problem or None,
        "other_names": [*model.names],
        "other_places": [str(each) for each in model.others],
    }


def _show(parsed: argparse.Namespace) -> int:
    model = _named(parsed.name)
    facts = {**_facts(model), "size": shown_bytes(model.size)}
    for name, value in facts.items():
        if value:
            shown = ", ".join(value) if isinstance(value, list) else value
            print(f"{name.replace('_', ' '):12}  {_on_one_line(shown)}")
    for kind, path in model.notes:
        print(f"\n{kind}:\n{_text(path)}")
    if not model.problem:
        print(f"\nllama-py inspect {model.path} shows what is in the file.")
    return 0


def _text(path: Path) -> str:
    from llama_py.regular_files import read_text

    try:
        return read_text(path).rstrip()
    except (OSError, ValueError) as error:
        return f"(it cannot be read: {error})"


def _remove(parsed: argparse.Namespace) -> int:
    for name in parsed.names:
        model = _named(name)
        if model.source != "hub":
            raise ParameterError(
                f"{model.name} belongs to {model.source}; remove it there: {model.path}"
            )
        cache, commit, inner = _in_cache(model)
        freed = cache.remove(commit, _parts(model.path, inner))
        print(f"{model.name}: {shown_bytes(freed)} are free again")
    return 0


def _in_cache(model: StoredModel) -> tuple[HubCache, str, str]:
    """Where a model of the hub's cache is: its repository, commit, and name in the repository."""
    from llama_py.models.hub_cache import HubCache, cache_folders

    folder = next(each for each in cache_folders() if each in model.path.parents)
    place, _, commit, *inner = model.path.relative_to(folder).parts
    repo = place.removeprefix("models--").replace("--", "/", 1)
    return HubCache(folder, repo), commit, "/".join(inner)


def _parts(path: Path, inner: str) -> list[str]:
    """The names of all files of a model in its repository."""
    from llama_py.models.selection import split_models

    folder = inner.rpartition("/")[0]
    beside = [f"{folder}/{each.name}" if folder else each.name for each in path.parent.iterdir()]
    return split_models(beside)[inner]


def _verify(parsed: argparse.Namespace) -> int:
    from llama_py.models.stores.catalog import stored_models

    models = [_named(name) for name in parsed.names] if parsed.names else stored_models()
    states = [(model, _damaged(model)) for model in models]
    wrong = [(model, files) for model, files in states if files or model.problem]
    if parsed.repair:
        wrong = [(model, files) for model, files in wrong if not _repaired(model, files)]
    return 1 if wrong else 0


def _damaged(model: StoredModel) -> list[Path]:
    """The files of a model that are not what their store names: parts, and the projector."""
    from llama_py.models.transport import hash_of

    named = {path: digest for path in _files(model) if (digest := _named_digest(path))}
    total, done = sum(path.stat().st_size for path in named), 0
    with ProgressLine(model.name, enabled=sys.stderr.isatty()) as line:

        def count(more: int) -> None:
            nonlocal done
            done += more
            line.bytes(done, total)

        wrong = [path for path, digest in named.items() if hash_of(path, digest, count) != digest]
    state = ", ".join(["it is damaged", *(path.name for path in wrong if path != model.path)])
    known = "right" if named else "its store names no digest"
    print(f"{_on_one_line(model.name)}: {model.problem or (state if wrong else known)}")
    return wrong


def _files(model: StoredModel) -> list[Path]:
    """The files of a model that are there: one, or its parts, and the projector."""
    parts = [model.path]
    if "-of-" in model.path.name and model.path.parent.is_dir():
        parts = [model.path.parent / each for each in _parts(model.path, model.path.name)]
    return [path for path in (*parts, model.projector) if path is not None and path.is_file()]


def _named_digest(path: Path) -> str:
    """The digest that the name of a blob is, or ""."""
    from llama_py.models.digests import is_digest

    name = path.resolve().name.removeprefix("sha256-")
    return name if is_digest(name) else ""


def _repaired(model: StoredModel, damaged: list[Path]) -> bool:
    """Download what is damaged or missing, of the same commit."""
    from llama_py.models.downloads import pull
    from llama_py.models.hub import HuggingFace
    from llama_py.models.references import Reference

    if model.source != "hub":
        print(f"{model.name}: {model.source} has to repair it", file=sys.stderr)
        return False
    cache, commit, inner = _in_cache(model)
    for path in damaged:
        path.resolve().unlink(missing_ok=True)
    try:
        with ProgressLine(model.name, enabled=sys.stderr.isatty()) as line:
            hub = HuggingFace(cache_dir=cache.folder.parent, watch=line.bytes)
            pull(Reference(cache.repo, file=inner, revision=commit), hub=hub)
    except (DownloadError, ModelNotFoundError, ParameterError) as error:
        print(f"{model.name}: {error}", file=sys.stderr)
        return False
    return True


def _where(parsed: argparse.Namespace) -> int:
    if parsed.name is not None:
        print(_named(parsed.name).path)
        return 0
    from llama_py.models.hub_cache import cache_folders
    from llama_py.models.stores import places

    named: Iterable[tuple[str, list[Path]]] = (
        ("hub", cache_folders()),
        ("llama.cpp", [places.llama_cpp_folder()]),
        ("Ollama", places.ollama_folders()),
        ("LM Studio", places.lm_studio_folders()),
        ("folder", places.model_folders()),
    )
    for source, folders in named:
        for folder in folders:
            there = "" if folder.is_dir() else "  (not there)"
            print(f"{source:10}  {folder}{there}")
    return 0


def _named(name: str) -> StoredModel:
    """The model of a name.

    Raises:
        ModelNotFoundError: there is none here.
    """
    from llama_py.models.stores.catalog import find, similar, stored_models

    models = stored_models()
    found = find(name, models)
    if found is None:
        near = similar(name, models)
        hint = f"; did you mean {', '.join(near)}?" if near else "; llama-py list shows all"
        raise ModelNotFoundError(f"there is no model {name} on this machine{hint}")
    return found
