"""``IsolatedModel``: stands where a loaded model stands, and has its context in another process.

In this process is what a call needs before the engine gets it, and after: the vocabulary, the
metadata, the templates, all read from the file without its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.api.facts import ContextFacts, EngineReport, ProcessStatus
from llama_py.api.isolation.port import IsolatedEmbeddingQueue, IsolatedPort, check_drafters
from llama_py.api.isolation.process import ModelProcess
from llama_py.api.loading import LoadedModel, media_limits
from llama_py.api.media import MediaReader, ModelMedia, find_projector
from llama_py.api.weights import context_params_of
from llama_py.core import backend, rpc
from llama_py.core.model import Model
from llama_py.embeddings.computing import check_embeds
from llama_py.engine.media import MediaCells, Medium
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import GenerationRequest
from llama_py.errors import IsolationError, ParameterError
from llama_py.media.arrays import Source
from llama_py.memory.text_keys import TextKeys
from llama_py.options import LOAD
from llama_py.options.drafters import as_speculative, read_speculative
from llama_py.params import ModelParams

__all__ = ["IsolatedModel", "load_isolated"]

#: Arguments of ``Llama`` that are of account in the process that calls, and in no other.
_HERE = frozenset(
    {"isolate", "progress", "chat_handler", "chat_template", "chat_format", "tokenizer", "seed"}
    | {"last_n_tokens_size", "spm_infill", "special_tokens_in_content", "json_calls", "tool_form"}
    | {"overflow", "prefix_cache_slots", "logits_all", "media_paths", "allow_urls"}
)


class _RemoteReader:
    """Reads pictures and sounds with the projector of the other process."""

    def __init__(self, port: IsolatedPort) -> None:
        self._port = port

    def read(self, source: Source, where: str) -> Medium:
        """See ``MediaEncoder.read``."""
        medium: Medium = self._port.ask("medium", source, where)
        return replace(medium, source=source)  # which did not come back

    def vectors(self, medium: Medium, stretch: MediaCells) -> NDArray[np.float32]:
        """See ``MediaEncoder.vectors``."""
        rows: NDArray[np.float32] = self._port.ask("vectors", medium, stretch)
        return rows


class IsolatedMedia(ModelMedia):
    """Pictures and sounds of a model whose projector is in its own process."""

    def __init__(
        self, model: Model, path: Path | None, arguments: Mapping[str, Any], port: IsolatedPort
    ) -> None:
        super().__init__(
            model,
            path,
            media_limits(arguments),
            n_ubatch=0,
            n_threads=lambda: 0,
            use_gpu=False,
            tokens=(None, None),
            capacity_bytes=0,
            attach=lambda _: None,
        )
        self._reader = _RemoteReader(port)

    @property
    def encoder(self) -> MediaReader:
        """The client of the other process, which loads the projector when it is asked first."""
        if self.path is None:
            raise ParameterError(self._missing)
        return self._reader


class IsolatedModel(LoadedModel):
    """A model whose context is in a process of its own; see the module.

    What needs the context itself raises ``IsolationError``.

    Args:
        model: its file, without weights.
        process: the other process, which is ready.
        arguments: those of ``Llama``.
    """

    __slots__ = ("__dict__", "_facts", "isolated_port", "model_process")

    def __init__(self, model: Model, process: ModelProcess, arguments: Mapping[str, Any]) -> None:
        port = IsolatedPort(process)
        facts = process.facts
        self._facts = facts.context if facts is not None else None
        media = None
        if self._facts is not None:
            given = arguments["mmproj"]
            path = find_projector(model.path, model.n_embd) if given == "auto" else given
            media = IsolatedMedia(model, None if path is None else Path(path), arguments, port)
        super().__init__(model, None, media=media)
        self.model_process = process
        self.isolated_port = port

    @property
    def isolated(self) -> bool:
        """True."""
        return True

    @property
    def own_process(self) -> ProcessStatus:
        """How the other process is."""
        return self.model_process.status

    @property
    def vocab_only(self) -> bool:
        """False: the weights are elsewhere."""
        return False

    @property
    def generates(self) -> bool:
        """True if there is a context to generate with."""
        return self._facts is not None

    @cached_property
    def embedding_queue(self) -> IsolatedEmbeddingQueue:
        """The embedder in the other process.

        Raises:
            ParameterError: the model has no embeddings.
        """
        check_embeds(self.model)
        return IsolatedEmbeddingQueue(self.isolated_port, self.isolated_port.ask("most_embedded"))

    @property
    def port(self) -> IsolatedPort:
        """Where requests are submitted."""
        if self._facts is None:
            self._refuse_to_generate()
        return self.isolated_port

    @property
    def facts(self) -> ContextFacts:
        """The context's constant facts."""
        if self._facts is None:
            self._refuse_to_generate()
        return self._facts

    @cached_property
    def text_keys(self) -> TextKeys:
        """How texts of prompts are compared and tokenized."""
        return TextKeys(self.model.vocab)

    def count(self, request: GenerationRequest) -> int:
        """See ``LoadedModel.count``."""
        count: int = self.port.ask("count", replace(request, on_progress=None))
        return count

    @property
    def metrics(self) -> Metrics:
        """What the engines of all its processes have counted; those that died, until they told it
        last."""
        return self.report().metrics

    @property
    def metrics_so_far(self) -> Metrics:
        """The same as far as they have told by now."""
        return self.model_process.metrics

    def report(self) -> EngineReport:
        """How the engine is doing now.

        Raises:
            EngineDeadError: it is not there.
        """
        report: EngineReport = self.port.ask("report")
        self.model_process.note_metrics(report.metrics)
        return replace(report, metrics=self.metrics_so_far)

    @property
    def pointer(self) -> Any:
        """There is none that C could compute with."""
        self._parts()

    @property
    def fingerprint(self) -> str:
        """Everything that the bytes of a saved state depend on."""
        found: str = self.port.ask("fingerprint")
        return found

    def warm_up(self) -> None:
        """Let the first request take no longer than others."""
        if self.generates:
            self.port.ask("warm_up")

    def copy_out(self, seconds: float) -> bool:
        """See ``LoadedModel.copy_out``."""
        return bool(self.port.ask("copy_out", seconds))

    def write_out(self, seconds: float) -> bool:
        """See ``LoadedModel.write_out``."""
        return bool(self.port.ask("write_out", seconds))

    def close(self) -> None:
        """End the other process, and free what there is here."""
        if not self.inherited:
            self.isolated_port.refuse_callbacks()
        self.model_process.close()
        self._model.close()

    def _refuse_to_generate(self) -> NoReturn:
        if self._process.inherited:
            raise forks.refuse()
        raise ParameterError.about_model(
            self._model.path,
            f"is an encoder ({self._model.architecture}), which does not generate text: it "
            "embeds (embed, rerank); load a decoder model",
        )

    def _parts(self) -> NoReturn:
        if self._process.inherited:
            raise forks.refuse()
        raise IsolationError(
            "this needs the model's context, its cells or its C pointers, which are in a process "
            "of their own; load the model without isolate=True"
        )


def load_isolated(arguments: Mapping[str, Any], given: Mapping[str, Any]) -> IsolatedModel:
    """Load a model into a process of its own.

    Args:
        arguments: those of ``Llama``, as ``options.LOAD`` completed them, and ``model_path``.
        given: those that somebody gave.

    Raises:
        ParameterError, IsolationError: an argument is wrong, or no use in another process.
        ModelLoadError, ContextCreationError: see ``Llama``; nothing is left of it.
    """
    for name in ("in_place", "vocab_only"):
        if arguments[name]:
            raise ParameterError(
                f"isolate=True and {name}=True contradict each other; leave one out"
            )
    for name in ("speculative", "draft_model"):
        if arguments[name] is not None:
            check_drafters(as_speculative(read_speculative(name, arguments[name])))
    # No device is used here: that of the other process may be lost without this one.
    context_params_of(arguments)
    params = replace(
        ModelParams.of(arguments),
        n_gpu_layers=0,
        n_cpu_moe=0,
        tensor_split=None,
        devices=None,
        rpc_servers=None,
        override_tensors=None,
    )
    backend.start(arguments["numa"])
    path = str(arguments["model_path"])
    read = LOAD.read({name: value for name, value in given.items() if name != "model_path"})
    options = {name: value for name, value in read.items() if name not in _HERE}
    if added := [server.endpoint for server in rpc.servers()]:
        own: Any = options.get("rpc_servers") or ()
        options["rpc_servers"] = (*own, *added)
    process = ModelProcess(path, options, verbose=arguments["verbose"])
    try:
        model = Model(path, params, without_weights=True)
    except BaseException:
        process.close()
        raise
    try:
        process.codec.vocab = model.vocab
        process.wait_until_loaded(arguments["progress"])
        return IsolatedModel(model, process, arguments)
    except BaseException:
        process.close()
        model.close()
        raise
