"""The options of ``Embedder``: how a model is loaded that only embeds."""

import os
from collections.abc import Callable
from typing import Annotated, Literal

from llama_py.options.loading import MediaOptions, ModelOptions
from llama_py.options.marks import Default, Doc, Flag, Range, Reads, WithoutDefault
from llama_py.options.values import read_flash, read_path

__all__ = ["EmbedderOptions", "Pooling"]

Pooling = Literal["none", "mean", "cls", "last", "rank"]

_LARGEST = 2**31 - 1


class EmbedderOptions(ModelOptions, MediaOptions, total=False):
    """Options of ``Embedder``, beside the model and its projector."""

    pooling: Annotated[
        Pooling | None,
        WithoutDefault("the model's own, or `mean`"),
        Flag("--pooling", metavar="HOW", help="mean, cls or last (default: the model's own)"),
        Doc("How the vectors of a text's tokens become one."),
    ]
    n_ctx: Annotated[
        int,
        Range(0, _LARGEST),
        Default(0),
        Flag("-c", "--n-ctx", metavar="N", help="longest input (default: the model's own)"),
        Doc("Tokens of the longest input; 0 is what the model was trained with."),
    ]
    n_ubatch: Annotated[
        int,
        Range(1, _LARGEST),
        Default(512),
        Doc("Tokens of short inputs that are computed together."),
    ]
    n_threads: Annotated[
        int | None,
        Range(1, 512),
        WithoutDefault("the physical cores of this process; 1 for a tiny model"),
        Flag("-t", "--threads", metavar="N", help="threads (default: cores)"),
        Doc("Threads that compute."),
    ]
    flash_attn: Annotated[
        bool | Literal["auto"] | None,
        Reads(read_flash),
        WithoutDefault('`"auto"`'),
        Flag("--flash-attn", metavar="on|off|auto", help="flash attention (default: auto)"),
        Doc(
            'Flash attention; None and `"auto"` use it on GPUs, for weights that are not in F32, '
            "and for long inputs."
        ),
    ]
    cache: Annotated[
        str | os.PathLike[str] | None,
        Reads(read_path),
        Flag("--cache", metavar="DIR", help="keep vectors of texts there, for the next time"),
        Doc(
            "A directory that keeps vectors of texts across calls and processes: a text that was "
            "embedded before, with this model and these options, is not computed again."
        ),
    ]
    cache_bytes: Annotated[
        int,
        Range(1 << 20, 2**50),
        Default(1 << 30),
        Flag("--cache-bytes", metavar="N", help="the most it takes (default: 1 GiB)"),
        Doc("Bytes of `cache` on the disk; vectors that were not used for the longest time go."),
    ]
    in_place: Annotated[
        bool,
        Default(False),
        Doc("Start no thread: calls compute themselves. One thread at a time may call it then."),
    ]
    progress: Annotated[
        Callable[[float], bool | None] | None,
        Doc(
            "Called with the fraction loaded, by the calling thread. Returning False or raising "
            "stops the loading."
        ),
    ]
    verbose: Annotated[
        bool,
        Default(False),
        Flag("-v", "--verbose", help="print llama.cpp's log"),
        Doc("Print llama.cpp's log on standard error. It always goes to the logger `llama_py`."),
    ]
