"""Files of the benchmarks in the user's cache: models with random weights, llama.cpp's tools."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import ModelNotFoundError, ParameterError

__all__ = ["cache_directory", "resolve_model"]

_QUANT, _VOCAB = "q8_0", 49152


def resolve_model(name: str) -> str:
    """The file that the value of ``--model`` names.

    Args:
        name: a GGUF file; ``demo``; or ``SHAPE[:vocab=N][:quant=Q][:repeats=yes]`` with random
            weights, which is written to the cache the first time.

    Raises:
        ModelNotFoundError: it is none of these.
        ParameterError: the shape's options are wrong.
    """
    from llama_py.bench import models

    if name == "demo":
        from llama_py.demo import demo_model_path

        return demo_model_path()
    if Path(name).is_file():
        return name
    shape, *parts = name.split(":")
    if shape not in models.SHAPES:
        known = ", ".join(models.SHAPES)
        raise ModelNotFoundError(f"--model {name}: no such file, and no shape (demo, {known})")
    options = dict(part.partition("=")[::2] for part in parts)
    quant, vocab = options.pop("quant", _QUANT), options.pop("vocab", str(_VOCAB))
    repeats = options.pop("repeats", "no") == "yes"
    if options or not vocab.isdigit() or quant not in models.QUANTS:
        raise ParameterError(f"--model {name}: a shape is written SHAPE[:vocab=N][:quant=Q]")
    return str(_made(shape, quant, int(vocab), repeats))


def _made(shape: str, quant: str, vocab: int, repeats: bool) -> Path:
    from llama_py.bench import models

    folder = Path(models.__file__).parent
    source = b"".join((folder / name).read_bytes() for name in ("models.py", "vocabulary.py"))
    version = hashlib.sha256(source + platform.python_version().encode()).hexdigest()[:10]
    kind = "-repeats" if repeats else ""
    path = cache_directory() / "bench-models" / f"{shape}-{quant}-{vocab}{kind}-{version}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        models.write_model(path, shape, quant=quant, vocab=vocab, repeats=repeats)
    return path
