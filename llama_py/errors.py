"""Every error that llama_py raises on purpose.

The tree (each class also derives from the builtin that callers of similar libraries catch)::

    LlamaError(Exception)
    ├── NativeLibraryError        (OSError)        the C libraries are missing or do not load
    │   ├── LibraryNotFoundError  (OSError)        ... because one is in none of their places
    │   └── LibraryLoadError      (OSError)        ... because the system refuses one
    ├── SymbolNotFoundError       (AttributeError) the C libraries are of another version
    ├── ModelLoadError            (ValueError)     a GGUF file cannot be used
    │   ├── ModelNotFoundError    (FileNotFoundError)
    │   ├── InvalidModelError     (ValueError)     not a GGUF, damaged, or not supported
    │   ├── ModelChangedError     (ValueError)     it was changed after it was loaded
    │   └── NotEnoughMemoryError  (MemoryError)    too little memory; a ContextCreationError, too
    ├── ContextCreationError      (RuntimeError)   no context with these parameters (memory, sizes)
    ├── DeviceUnavailableError    (RuntimeError)   a device of another machine cannot be used
    │   └── DeviceLostError       (RuntimeError)   ... any more, by a model that is loaded on it
    ├── ParameterError            (ValueError)     an argument is out of range or contradictory
    │   ├── ParameterTypeError    (TypeError)      an argument has the wrong type
    │   └── UnknownParameterError (TypeError)      an argument that does not exist
    ├── MediaError                (ValueError)     a picture or sound that cannot be used
    ├── DownloadError             (OSError)        a model cannot be downloaded
    ├── MissingPackageError       (ImportError)    an optional package is not installed
    ├── ClosedError               (RuntimeError)   the object was closed before this call
    ├── ForkedProcessError        (RuntimeError)   the model is that of the process that forked
    ├── TokenizationError         (ValueError)     text that the vocabulary cannot take
    ├── GrammarError              (ValueError)     a grammar or JSON schema that cannot be compiled
    ├── TemplateError             (ValueError)     a chat template that fails, or is missing
    │   └── TemplateLimitError    (ValueError)     it takes more steps, text or time than one may
    ├── ContextOverflowError      (ValueError)     more tokens than the context has room for
    │   └── InputTooLongError     (ValueError)     ... in a text that is to be embedded
    ├── DecodeError               (RuntimeError)   llama_decode failed
    │   └── CacheFullError        (RuntimeError)   no free cells, although nothing else is running
    ├── StateError                (RuntimeError)   a saved state that does not fit or is damaged
    │   ├── FingerprintError      (RuntimeError)   ... because it was made under other settings
    │   ├── ConversationBusyError (RuntimeError)   a request is using the conversation
    │   └── ConversationMissingError (RuntimeError)  it is not in memory
    ├── RequestCancelled          (RuntimeError)   the request was cancelled before it finished
    ├── StorageError              (OSError)        a session or cache cannot be written or read
    │   └── StorageNotFoundError  (FileNotFoundError)  ... because there is no such file
    ├── GenerationTimeout         (TimeoutError)   the time limit passed; carries what was generated
    ├── QueueFullError            (RuntimeError)   too many requests are waiting
    ├── EngineDeadError           (RuntimeError)   the model's own process died (``isolate=True``)
    ├── IsolationError            (RuntimeError)   what a model in a process of its own cannot do
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CacheFullError",
    "ClosedError",
    "ContextCreationError",
    "ContextOverflowError",
    "ConversationBusyError",
    "ConversationMissingError",
    "DecodeError",
    "DeviceLostError",
    "DeviceUnavailableError",
    "DownloadError",
    "EngineDeadError",
    "FingerprintError",
    "ForkedProcessError",
    "GenerationTimeout",
    "GrammarError",
    "InputTooLongError",
    "InvalidModelError",
    "IsolationError",
    "LibraryLoadError",
    "LibraryNotFoundError",
    "LlamaError",
    "MediaError",
    "MissingPackageError",
    "ModelChangedError",
    "ModelLoadError",
    "ModelNotFoundError",
    "NativeLibraryError",
    "NotEnoughMemoryError",
    "ParameterError",
    "ParameterTypeError",
    "QueueFullError",
    "RequestCancelled",
    "StateError",
    "StorageError",
    "StorageNotFoundError",
    "SymbolNotFoundError",
    "TemplateError",
    "TemplateLimitError",
    "TokenizationError",
    "UnknownParameterError",
]


def shown(value: Any, limit: int = 80) -> str:
    """``repr`` of any value for a message, cut to ``limit`` characters. Never raises."""
    try:
        text = repr(value)
    except Exception:  # integers of thousands of digits, endless nesting, anything of a caller's
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


class LlamaError(Exception):
    """Base of every error that llama_py raises on purpose."""


class NativeLibraryError(LlamaError, OSError):
    """The llama.cpp libraries were not found, or were found and could not be loaded."""


class LibraryNotFoundError(NativeLibraryError):
    """A native library is in none of the places where it is looked for."""


class LibraryLoadError(NativeLibraryError):
    """A native library is there, but the system refuses to load it, or it was built from a
    llama.cpp whose structs and functions are others than this version declares."""


class SymbolNotFoundError(LlamaError, AttributeError):
    """The libraries lack a function: they were built from another version of llama.cpp."""


class ModelLoadError(LlamaError, ValueError):
    """A model file cannot be used."""


class ModelNotFoundError(ModelLoadError, FileNotFoundError):
    """There is no file at the given path."""


class InvalidModelError(ModelLoadError):
    """The file is not a GGUF, is damaged, or needs something this build does not support."""


class ModelChangedError(ModelLoadError):
    """The file of a loaded model was changed in place; what was computed would be wrong."""


class ContextCreationError(LlamaError, RuntimeError):
    """llama.cpp could not make a context with these parameters."""


class NotEnoughMemoryError(ModelLoadError, ContextCreationError, MemoryError):
    """This process has too little memory left for a model and its context; nothing was loaded."""


class DeviceUnavailableError(LlamaError, RuntimeError):
    """The server of a device (RPC) cannot be reached, or is none; the message says why."""


class DeviceLostError(DeviceUnavailableError):
    """A device that a model is loaded on is gone: its server ended, or does not answer.

    The model cannot compute any more. What was kept of its conversations outside of the device (in
    RAM, on disk) is there; load it again, on other devices.
    """


class ParameterError(LlamaError, ValueError):
    """An argument is out of range, or contradicts another one.

    Attributes:
        param: the argument (``"messages[2].content"``), where that is known apart from the message.
        public: the message for clients of a server, who are not told where files lie; None if it is
            the same.
    """

    param: str | None = None
    public: str | None = None

    @classmethod
    def about_model(cls, path: object, problem: str) -> ParameterError:
        """A model cannot do what was asked of it.

        Args:
            path: its file, which is named in the message, and not in ``public``.
            problem: what follows it in a sentence (``is an encoder``).
        """
        error = cls(f"{path} {problem}")
        error.public = f"this model {problem}"
        return error


class ParameterTypeError(ParameterError, TypeError):
    """An argument has the wrong type."""


class UnknownParameterError(ParameterError, TypeError):
    """An argument that does not exist; the message names the nearest one that does."""


class MediaError(LlamaError, ValueError):
    """A picture or a sound that is damaged, of an unknown format, too large, or not allowed."""


class DownloadError(LlamaError, OSError):
    """A model could not be downloaded."""


class MissingPackageError(LlamaError, ImportError):
    """A call needs a package that is not installed; the message says how to install it."""


class ClosedError(LlamaError, RuntimeError):
    """The object was closed before this call."""


class ForkedProcessError(LlamaError, RuntimeError):
    """A model was used in a process that was forked from the one that loaded it."""


class TokenizationError(LlamaError, ValueError):
    """The vocabulary cannot tokenize this text, or a token id is outside of it."""


class GrammarError(LlamaError, ValueError):
    """A grammar or a JSON schema cannot be compiled.

    Attributes:
        param: the argument that it came with, where that is known.
    """

    param: str | None = None


class TemplateError(LlamaError, ValueError):
    """A chat template is missing, does not parse, or refuses these messages."""


class TemplateLimitError(TemplateError):
    """A chat template takes more steps, text or time than one may."""


class ContextOverflowError(LlamaError, ValueError):
    """A prompt, or a prompt with its reply, needs more tokens than the context has room for.

    Raised before anything is evaluated or evicted.

    Attributes:
        prompt_tokens: tokens in the prompt.
        at_least: ``prompt_tokens`` is a lower bound: the prompt is so long that it was not counted.
        limit: tokens that one sequence of this context can hold.
        fits: the largest prompt, in tokens, that would have been accepted.
        what: which text it is, if it is not the prompt of a reply.
    """

    def __init__(
        self,
        prompt_tokens: int,
        limit: int,
        fits: int | None = None,
        what: str = "",
        at_least: bool = False,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.at_least = at_least
        self.limit = limit
        self.fits = max(0, limit - 1) if fits is None else fits
        self.what = what
        remedy = "shorten it" if what else "shorten the messages, pass overflow=TrimMessages()"
        count = f"at least {prompt_tokens}" if at_least else prompt_tokens
        super().__init__(
            f"{what or 'the prompt'} has {count} tokens, but this context holds {limit} "
            f"(a prompt of up to {self.fits} tokens fits); {remedy}, or load the model with a "
            "larger n_ctx"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.prompt_tokens, self.limit, self.fits, self.what, self.at_least)


class InputTooLongError(ContextOverflowError):
    """A text that is to be embedded has more tokens than the model takes; nothing was computed.

    Attributes:
        index: its place among the inputs.
        name: of the argument.
    """

    def __init__(self, index: int, n_tokens: int, limit: int, name: str = "inputs") -> None:
        super().__init__(n_tokens, limit, limit)
        self.index = index
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.name}[{self.index}] has {self.prompt_tokens} tokens, and this model embeds at "
            f"most {self.limit} at once; shorten it, or pass truncate=True"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, self.prompt_tokens, self.limit, self.name)


class DecodeError(LlamaError, RuntimeError):
    """llama_decode failed. The memory was repaired; the next call works.

    Attributes:
        code: what llama_decode returned.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        self.code = code
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code)


class CacheFullError(DecodeError):
    """There are no free cells for this request, although nothing idle is left to offload."""


class StateError(LlamaError, RuntimeError):
    """A saved state is damaged or does not fit this context."""


class FingerprintError(StateError):
    """A saved state was made by another model, or under other settings.

    Attributes:
        refused: ``version`` if another version of llama.cpp wrote it, or it has another format;
            else ``settings``.
    """

    def __init__(self, message: str = "", refused: str = "settings") -> None:
        super().__init__(message)
        self.refused = refused


class ConversationBusyError(StateError):
    """A request is using the conversation; it may be asked for again when that has ended."""


class ConversationMissingError(StateError):
    """There is no such conversation in memory, or it is somebody else's."""


class StorageError(LlamaError, OSError):
    """A file or directory cannot be made, written or read; ``errno`` says why.

    Attributes:
        errno: the system's number for the reason, or None.
        filename: the path.
    """

    def __init__(self, message: str, errno: int | None = None, filename: str | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        self.filename = filename

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.errno, self.filename)


class StorageNotFoundError(StorageError, FileNotFoundError):
    """There is no file at the given path."""


class RequestCancelled(LlamaError, RuntimeError):
    """The request was cancelled before it finished: by ``reset()`` in another thread, for example.

    Closing one's own stream raises nothing.

    Attributes:
        partial: the response with what was generated until then, or None.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        self.partial = partial
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.partial)


class GenerationTimeout(LlamaError, TimeoutError):
    """The time limit of a request passed.

    Attributes:
        partial: the response with what was generated until then, or None.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        self.partial = partial
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.partial)


class QueueFullError(LlamaError, RuntimeError):
    """As many requests are waiting as the engine accepts."""


class EngineDeadError(LlamaError, RuntimeError):
    """The process of a model that was loaded with ``isolate=True`` died while a call needed it.

    It is started again. The call may be made again: what the stores have of its conversation is
    reused.

    Attributes:
        exit_code: with which it ended; negative is the number of a signal, as of ``subprocess``.
        signal: the signal's name (``"SIGKILL"``), or None.
        log: the last lines that it wrote on standard error (a ``GGML_ASSERT``, for example).
        retry_after: seconds after which it is worth trying again.
        public: the message for clients of a server, who are not told where files lie.
    """

    def __init__(
        self,
        message: str,
        exit_code: int | None = None,
        signal: str | None = None,
        log: tuple[str, ...] = (),
        retry_after: float = 1.0,
        public: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.log = log
        self.retry_after = retry_after
        self.public = public

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.exit_code, self.signal, self.log, self.retry_after, self.public)
        return type(self), (str(self), *given)


class IsolationError(LlamaError, RuntimeError):
    """A call needs the model in this process, and it has one of its own (``isolate=True``)."""
