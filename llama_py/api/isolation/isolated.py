"""``IsolatedModel``: stands where a loaded model stands, and has its context in another process.

In this process is what a call needs before the engine gets it, and after: the vocabulary, the
metadata, the templates, all read from the file without its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.api.facts import ContextFacts, EngineReport, ProcessStatus
from llama_py.api.isolation.port import IsolatedEmbeddingQueue, IsolatedPort, check_drafters
from llama_py.api.isolation.process import ModelProcess
from llama_py.api.loading import media_limits
from llama_py.api.media import MediaReader, ModelMedia, find_projector
from llama_py.api.port import LoadedModel, ModelPort
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
from llama_py.states.disk import LlamaDiskCache
from llama_py.states.store import StateStore

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


class IsolatedModel(ModelPort):
    """A model whose context is in a process of its own; see the module.

    Args:
        model: its file, without weights.
        process: the other process, which is ready.
        arguments: those of ``Llama``.
    """

    def __init__(self, model: Model, process: ModelProcess, arguments: Mapping[str, Any]) -> None:
        port = IsolatedPort(process)
        self._facts = process.facts.context if process.facts is not None else None
        media = None
        if self._facts is not None:
            given = arguments["mmproj"]
            path = find_projector(model.path, model.n_embd) if given == "auto" else given
            media = IsolatedMedia(model, None if path is None else Path(path), arguments, port)
        super().__init__(model, media, port)
        self.model_process = process
        self._port = port

    @property
    def own_process(self) -> ProcessStatus:
        """How the other process is."""
        return self.model_process.status

    @property
    def generates(self) -> bool:
        """True if there is a context to generate with."""
        return self._facts is not None

    @cached_property
    def embedding_queue(self) -> IsolatedEmbeddingQueue:
        """The embedder in the other process."""
        check_embeds(self.model)
        return IsolatedEmbeddingQueue(self._port, self._port.ask("most_embedded"))

    @property
    def queue(self) -> IsolatedPort:
        """Where requests are submitted."""
        if self._facts is None:
            raise self._refusal()
        return self._port

    @property
    def facts(self) -> ContextFacts:
        """The context's constant facts."""
        if self._facts is None:
            raise self._refusal()
        return self._facts

    @cached_property
    def text_keys(self) -> TextKeys:
        """How texts of prompts are compared and tokenized."""
        return TextKeys(self.model.vocab)

    @property
    def fingerprint(self) -> str:
        """Everything that the bytes of a saved state depend on."""
        found: str = self.queue.ask("LoadedModel.fingerprint")
        return found

    @property
    def metrics(self) -> Metrics:
        """Counters of the engines of all its processes."""
        return self.report().metrics

    @property
    def metrics_so_far(self) -> Metrics:
        """The same as far as they have told by now."""
        return self.model_process.metrics

    def report(self) -> EngineReport:
        """See ``ModelPort.report``."""
        report: EngineReport = self.queue.ask("LoadedModel.report")
        self.model_process.note_metrics(report.metrics)
        return replace(report, metrics=self.metrics_so_far)

    def count(self, request: GenerationRequest) -> int:
        """See ``ModelPort.count``."""
        return int(self.queue.ask("LoadedModel.count", replace(request, on_progress=None)))

    def warm_up(self) -> None:
        """See ``ModelPort.warm_up``."""
        if self.generates:
            self.queue.ask("LoadedModel.warm_up")

    def set_store(self, store: StateStore | None) -> None:
        """Have the other process open the same directory, and use it."""
        if store is not None and not isinstance(store, LlamaDiskCache):
            raise IsolationError(
                f"{type(store).__name__} keeps conversations in this process, and the model's own "
                "would lose them with itself; use a LlamaDiskCache, or load it without isolate=True"
            )
        self.check_generates()
        self._port.refuse_callbacks()
        self.model_process.remember("set_store", store)

    def write_out(self, seconds: float) -> bool:
        """See ``ModelPort.write_out``."""
        return bool(self.queue.ask("LoadedModel.write_out", seconds))

    def reset(self, cancel: bool, also: Callable[[], None] = lambda: None) -> None:
        """See ``ModelPort.reset``."""
        self.queue.ask("LoadedModel.reset", cancel)
        also()

    def here(self) -> LoadedModel:
        """It is not here."""
        if self.inherited:
            raise forks.refuse()
        raise IsolationError(
            "this needs the model's context, its cells or its C pointers, which are in a process "
            "of their own; load the model without isolate=True"
        )

    def close(self) -> None:
        """End the other process, and free what there is here."""
        if not self.inherited:
            self._port.refuse_callbacks()
        self.model_process.close()
        self._model.close()


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
