"""``llama-py quantize, imatrix, perplexity, split, edit`` and others: tools for model files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from llama_py.cli.elsewhere import with_aliases
from llama_py.cli.progress import ProgressLine
from llama_py.cli.sizes import read_bytes, shown_bytes
from llama_py.errors import ParameterError
from llama_py.regular_files import read_short_text

__all__ = ["add_parsers"]

_TYPES = ("bool", "u8", "i8", "u16", "i16", "u32", "i32", "f32", "u64", "i64", "f64", "str")


def add_parsers(commands: Any) -> None:
    """Add them to the subcommands of ``llama-py``."""
    _add_quantize(commands)
    _add_imatrix(commands)
    _add_perplexity(commands)
    _add_split(commands)
    _add_edit(commands)


def _add_quantize(commands: Any) -> None:
    quantize = commands.add_parser(
        "quantize",
        help="write a model with other types of weights",
        description="Write a model with other types of weights, by llama.cpp. Types, matrix and "
        "the source are checked before; the target gets its name when it is complete.",
    )
    quantize.add_argument("source", metavar="SOURCE", help="a GGUF in F32, F16 or BF16, or a name")
    quantize.add_argument("target", metavar="TARGET", type=Path, help="the file to write")
    quantize.add_argument("type", metavar="TYPE", nargs="?", default="Q4_K_M", help="(%(default)s)")
    quantize.add_argument("--imatrix", metavar="FILE", type=Path, help="an importance matrix")
    quantize.add_argument("--output-tensor-type", metavar="TYPE", help="the type of output.weight")
    quantize.add_argument(
        "--token-embedding-type", metavar="TYPE", help="the type of token_embd.weight"
    )
    quantize.add_argument(
        "--tensor-type",
        metavar="REGEX=TYPE",
        action="append",
        default=[],
        help="the type of tensors with such names; may be repeated",
    )
    quantize.add_argument("--leave-output-tensor", action="store_true", help="keep output.weight")
    quantize.add_argument("--pure", action="store_true", help="one type for all tensors")
    quantize.add_argument(
        "--allow-requantize", action="store_true", help="quantize what is quantized already"
    )
    quantize.add_argument(
        "--prune-layers", metavar="N,N", default="", help="layers to leave out, by number"
    )
    quantize.add_argument("--dry-run", action="store_true", help="print the plan only")
    quantize.add_argument("-t", "--threads", metavar="N", type=int, help="(default: all cores)")
    quantize.set_defaults(run=_quantize)


def _quantize(parsed: argparse.Namespace) -> int:
    from llama_py.cli.options import model_path
    from llama_py.tools.quantize import plan_quantize, quantize

    options: dict[str, Any] = {
        "imatrix": parsed.imatrix,
        "output_type": parsed.output_tensor_type,
        "embedding_type": parsed.token_embedding_type,
        "tensor_types": [_divided(each, "--tensor-type") for each in parsed.tensor_type],
        "allow_requantize": parsed.allow_requantize,
        "quantize_output": not parsed.leave_output_tensor,
        "pure": parsed.pure,
        "prune_layers": _numbers(parsed.prune_layers),
        "n_threads": parsed.threads,
    }
    source = model_path(parsed.source, None)
    if parsed.dry_run:
        plan = plan_quantize(source, parsed.type, **options)
        for tensor in plan.tensors:
            change = "" if tensor.before == tensor.after else f" -> {tensor.after}"
            print(f"{tensor.name:40} {tensor.before}{change}")
    else:
        with ProgressLine("quantizing", enabled=sys.stderr.isatty()) as line:
            plan = quantize(
                source,
                parsed.target,
                parsed.type,
                progress=lambda done, total, _: line.inputs(done, total),
                **options,
            )
    print(f"{shown_bytes(plan.n_bytes)}, {plan.bits_per_weight:.2f} bits per weight")
    return 0


def _divided(text: str, flag: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ParameterError(f"{flag}: {text!r} is not NAME=VALUE")
    return name, value


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",") if each]
    except ValueError:
        raise ParameterError(f"--prune-layers: {text!r} is not a list of numbers") from None


# ---- matrices ----------------------------------------------------------------------------------


def _add_imatrix(commands: Any) -> None:
    imatrix = commands.add_parser(
        "imatrix",
        help="compute an importance matrix for quantize",
        description="Compute how much each input of each weight matters, on a text; the file is "
        "that of llama.cpp's llama-imatrix. It is written on the way: --resume goes on.",
    )
    imatrix.add_argument("model", metavar="MODEL", help="a GGUF file, or a name")
    imatrix.add_argument("text", metavar="FILE", help="the text")
    imatrix.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    imatrix.add_argument(*with_aliases("--n-ctx"), metavar="N", type=int, default=512, help="(512)")
    imatrix.add_argument("-b", "--n-batch", metavar="N", type=int, default=2048, help="(2048)")
    imatrix.add_argument("--chunks", metavar="N", type=int, help="pieces of the text (all)")
    imatrix.add_argument("--process-output", action="store_true", help="output.weight as well")
    imatrix.add_argument("--resume", action="store_true", help="go on with a file that is there")
    imatrix.add_argument("-t", "--threads", metavar="N", type=int, help="(all cores)")
    imatrix.set_defaults(run=_imatrix)
    merge = commands.add_parser("merge-imatrix", help="add importance matrices of one model")
    merge.add_argument("files", metavar="FILE", nargs="+")
    merge.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    merge.set_defaults(run=_merge_imatrix)


def _imatrix(parsed: argparse.Namespace) -> int:
    from llama_py.cli.options import model_path
    from llama_py.tools.imatrix import collect_matrix

    text = read_short_text(parsed.text)
    with ProgressLine("evaluating", enabled=sys.stderr.isatty()) as line:
        count = collect_matrix(
            model_path(parsed.model, None),
            text,
            parsed.output,
            dataset=parsed.text,
            n_ctx=parsed.n_ctx,
            n_batch=parsed.n_batch,
            chunks=parsed.chunks,
            output=parsed.process_output,
            resume=parsed.resume,
            n_threads=parsed.threads,
            progress=line.inputs,
        )
    print(f"{parsed.output}: {count} pieces")
    return 0


def _merge_imatrix(parsed: argparse.Namespace) -> int:
    from llama_py.tools.imatrix import merge_matrices

    merge_matrices(parsed.files, parsed.output)
    print(parsed.output)
    return 0


# ---- perplexity --------------------------------------------------------------------------------


def _add_perplexity(commands: Any) -> None:
    perplexity = commands.add_parser(
        "perplexity",
        help="measure how well a model predicts a text",
        description="Measure how well a model predicts a text, as llama.cpp's llama-perplexity.",
    )
    perplexity.add_argument("model", metavar="MODEL", help="a GGUF file, or a name")
    perplexity.add_argument("text", metavar="FILE", help="the text")
    perplexity.add_argument(
        *with_aliases("--n-ctx"), metavar="N", type=int, default=512, help="(512)"
    )
    perplexity.add_argument("-b", "--n-batch", metavar="N", type=int, default=2048, help="(2048)")
    perplexity.add_argument("--chunks", metavar="N", type=int, help="pieces of the text (all)")
    perplexity.add_argument(
        "--base", metavar="FILE", help="write the logits for kl-divergence of other models"
    )
    perplexity.add_argument("-t", "--threads", metavar="N", type=int, help="(all cores)")
    perplexity.set_defaults(run=_perplexity)
    divergence = commands.add_parser(
        "kl-divergence",
        help="measure how a model differs from the one it was made of",
        description="Measure how a model's predictions differ from those of a base model, whose "
        "logits llama-py perplexity --base FILE (or llama-perplexity) has written.",
    )
    divergence.add_argument("model", metavar="MODEL", help="a GGUF file, or a name")
    divergence.add_argument("base", metavar="BASE", help="the logits of the base model")
    divergence.add_argument("-b", "--n-batch", metavar="N", type=int, default=2048, help="(2048)")
    divergence.add_argument("-t", "--threads", metavar="N", type=int, help="(all cores)")
    divergence.set_defaults(run=_divergence)


def _perplexity(parsed: argparse.Namespace) -> int:
    from llama_py.cli.options import model_path
    from llama_py.tools.perplexity import perplexity

    text = read_short_text(parsed.text)
    with ProgressLine("evaluating", enabled=sys.stderr.isatty()) as line:
        found = perplexity(
            model_path(parsed.model, None),
            text,
            n_ctx=parsed.n_ctx,
            n_batch=parsed.n_batch,
            chunks=parsed.chunks,
            base=parsed.base,
            n_threads=parsed.threads,
            progress=lambda done, total, _: line.inputs(done, total),
        )
    print(f"perplexity {found.estimate} ({found.n_tokens} tokens)")
    return 0


def _divergence(parsed: argparse.Namespace) -> int:
    from llama_py.cli.options import model_path
    from llama_py.tools.perplexity import kl_divergence

    with ProgressLine("evaluating", enabled=sys.stderr.isatty()) as line:
        found = kl_divergence(
            model_path(parsed.model, None),
            parsed.base,
            n_batch=parsed.n_batch,
            n_threads=parsed.threads,
            progress=lambda done, total, _: line.inputs(done, total),
        )
    print(found.report())
    return 0


# ---- parts and metadata ------------------------------------------------------------------------


def _add_split(commands: Any) -> None:
    split = commands.add_parser("split", help="write a model in several files")
    split.add_argument("source", metavar="SOURCE", type=Path, help="a GGUF file")
    split.add_argument("prefix", metavar="PREFIX", type=Path, help="of PREFIX-00001-of-0000N.gguf")
    split.add_argument("--max-size", metavar="SIZE", help="bytes of a part: 2G, 500M")
    split.add_argument("--max-tensors", metavar="N", type=int, default=128, help="(128)")
    split.set_defaults(run=_split)
    merge = commands.add_parser("merge", help="write the parts of a model as one file")
    merge.add_argument("first", metavar="FIRST", type=Path, help="the part -00001-of-0000N.gguf")
    merge.add_argument("target", metavar="TARGET", type=Path, help="the file to write")
    merge.set_defaults(run=_merge)


def _split(parsed: argparse.Namespace) -> int:
    from llama_py.tools.parts import split

    try:
        most = read_bytes(parsed.max_size) if parsed.max_size else None
    except ValueError:
        raise ParameterError(f"--max-size: {parsed.max_size!r} is not a size such as 2G") from None
    with _Bytes("splitting", parsed.source.stat().st_size) as line:
        for path in split(
            parsed.source,
            parsed.prefix,
            max_bytes=most,
            max_tensors=parsed.max_tensors,
            progress=line.add,
        ):
            print(path)
    return 0


def _merge(parsed: argparse.Namespace) -> int:
    from llama_py.tools.parts import merge

    with _Bytes("merging", 0) as line:
        merge(parsed.first, parsed.target, line.add)
    print(parsed.target)
    return 0


class _Bytes(ProgressLine):
    """A line for work that is counted in bytes."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, enabled=sys.stderr.isatty())
        self._bytes_done, self._total = 0, total

    def add(self, count: int) -> None:
        """Count more bytes."""
        self._bytes_done += count
        self.bytes(self._bytes_done, max(self._total, self._bytes_done))


def _add_edit(commands: Any) -> None:
    edit = commands.add_parser(
        "edit",
        help="change metadata of a model file",
        description="Change metadata of a model file. Its tensors stay. Without --output, "
        "the file is replaced when the new one is complete.",
    )
    edit.add_argument("source", metavar="FILE", type=Path, help="a GGUF file")
    edit.add_argument("-o", "--output", metavar="TARGET", type=Path, help="write another file")
    edit.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set a key; a new one may have a type: KEY:u32=7. Lists are JSON. May be repeated",
    )
    edit.add_argument("--remove", metavar="KEY", action="append", default=[], help="remove a key")
    edit.add_argument("--chat-template", metavar="FILE", help="set the template to a file's text")
    edit.set_defaults(run=_edit)
    diff = commands.add_parser(
        "diff",
        help="compare two model files",
        description="Compare two model files: metadata, tensors, their bytes. The exit code is 1 "
        "if they differ.",
    )
    diff.add_argument("left", metavar="FILE", type=Path)
    diff.add_argument("right", metavar="FILE", type=Path)
    diff.set_defaults(run=_diff)


def _edit(parsed: argparse.Namespace) -> int:
    from llama_py.gguf.check import whole_file
    from llama_py.tools.edit import edit

    types = whole_file(parsed.source).types
    changes: dict[str, Any] = {}
    for given in parsed.set:
        key, value = _divided(given, "--set")
        name, _, kind = key.rpartition(":")
        if name and kind in _TYPES:
            changes[name] = (kind, _value(value, kind))
        else:
            changes[key] = _value(value, types.get(key))
    if parsed.chat_template:
        changes["tokenizer.chat_template"] = read_short_text(parsed.chat_template)
    if not changes and not parsed.remove:
        raise ParameterError("nothing is to be changed; give --set, --remove or --chat-template")
    print(edit(parsed.source, parsed.output, set_values=changes, remove=parsed.remove))
    return 0


def _value(text: str, kind: str | None) -> Any:
    """A value as it is written; texts need no quotes."""
    if kind == "str" and not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError:
        if kind is None:
            return text
        raise ParameterError(f"--set: {text!r} is not a value of the type {kind}") from None


def _diff(parsed: argparse.Namespace) -> int:
    from llama_py.tools.edit import diff

    found = diff(parsed.left, parsed.right)
    for each in found:
        print(f"{each.name}: {_shown(each.left)} | {_shown(each.right)}")
    return 1 if found else 0


def _shown(text: str | None) -> str:
    if text is None:
        return "(not there)"
    return text if len(text) <= 100 else text[:97] + "..."
