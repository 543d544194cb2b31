"""Settings of the server, with the names, defaults and environment variables of llama-cpp-python.

A setting that is not given comes from the environment (``n_ctx`` from ``N_CTX``), where it is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, get_args

from typing_extensions import Self

__all__ = ["ConfigFileSettings", "ModelSettings", "ServerSettings", "Settings", "from_text"]

_TRUE = ("1", "on", "t", "true", "y", "yes")
_FALSE = ("0", "off", "f", "false", "n", "no")


def from_text(kind: Any, text: str) -> Any:
    """The value that a text is for a setting of this type.

    Raises:
        ValueError: it is none.
    """
    kinds = [each for each in get_args(kind) or (kind,) if each is not type(None)]
    if bool in kinds and text.strip().lower() in (*_TRUE, *_FALSE):
        return text.strip().lower() in _TRUE
    for each in (int, float):
        if each in kinds:
            try:
                return each(text)
            except ValueError:
                if str not in kinds:
                    raise
    if str in kinds:
        return text
    if bool in kinds:
        raise ValueError(f"Invalid boolean argument: {text}")
    return json.loads(text)


Field = tuple[Any, Any]
"""The type of a setting, and its default."""


_MODEL: dict[str, Field] = {
    "model": (str, ""),
    "model_alias": (str | None, None),
    "n_gpu_layers": (int, 0),
    "split_mode": (int, 1),
    "main_gpu": (int, 0),
    "tensor_split": (list[float] | None, None),
    "vocab_only": (bool, False),
    "use_mmap": (bool, True),
    "use_mlock": (bool, True),
    "kv_overrides": (list[str] | None, None),
    "rpc_servers": (str | None, None),
    "seed": (int, 0xFFFFFFFF),
    "n_ctx": (int, 2048),
    "n_batch": (int, 512),
    "n_ubatch": (int, 512),
    "n_threads": (int, 0),
    "n_threads_batch": (int, 0),
    "rope_scaling_type": (int, -1),
    "rope_freq_base": (float, 0.0),
    "rope_freq_scale": (float, 0.0),
    "yarn_ext_factor": (float, -1.0),
    "yarn_attn_factor": (float, 1.0),
    "yarn_beta_fast": (float, 32.0),
    "yarn_beta_slow": (float, 1.0),
    "yarn_orig_ctx": (int, 0),
    "mul_mat_q": (bool, True),
    "logits_all": (bool, True),
    "embedding": (bool, False),
    "offload_kqv": (bool, True),
    "flash_attn": (bool, False),
    "last_n_tokens_size": (int, 64),
    "lora_base": (str | None, None),
    "lora_path": (str | None, None),
    "numa": (bool | int, False),
    "chat_format": (str | None, None),
    "chat_template_kwargs": (dict[str, Any] | None, None),
    "clip_model_path": (str | None, None),
    "cache": (bool, False),
    "cache_type": (str, "ram"),
    "cache_size": (int, 2 << 30),
    "hf_tokenizer_config_path": (str | None, None),
    "hf_pretrained_model_name_or_path": (str | None, None),
    "hf_model_repo_id": (str | None, None),
    "draft_model": (str | None, None),
    "draft_model_num_pred_tokens": (int, 10),
    "type_k": (int | None, None),
    "type_v": (int | None, None),
    "verbose": (bool, True),
}
_SERVER: dict[str, Field] = {
    "host": (str, "localhost"),
    "port": (int, 8000),
    "ssl_keyfile": (str | None, None),
    "ssl_certfile": (str | None, None),
    "api_key": (str | None, None),
    "interrupt_requests": (bool, True),
    "disable_ping_events": (bool, False),
    "root_path": (str, ""),
}


class _Base:
    """The base of all settings.

    Attributes:
        model_fields: type and default of each setting.
    """

    model_fields: ClassVar[dict[str, Field]] = {}

    def __init__(self, **given: Any) -> None:
        for name, (kind, default) in self.model_fields.items():
            text = os.environ.get(name.upper())
            unset = default if text is None else from_text(kind, text)
            setattr(self, name, given.get(name, unset))

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Settings of a dictionary or of other settings; what they have beside is left out."""
        given = value if isinstance(value, Mapping) else vars(value)
        return cls(**{name: each for name, each in given.items() if name in cls.model_fields})

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """Settings of a JSON object."""
        return cls.model_validate(json.loads(text))

    def model_dump(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        return dict(vars(self))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(json.dumps(vars(self), default=str, sort_keys=True))

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({given})"


class ModelSettings(_Base):
    """A model, and how it is loaded."""

    model_fields = _MODEL

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.set_dynamic_defaults()

    def set_dynamic_defaults(self) -> Self:
        """-1 threads are as many as there are cores; 0 are llama_py's default."""
        for name in ("n_threads", "n_threads_batch"):
            if getattr(self, name) == -1:
                setattr(self, name, os.cpu_count() or 1)
        return self


class ServerSettings(_Base):
    """Where the server listens, and who may call."""

    model_fields = _SERVER


class Settings(ServerSettings, ModelSettings):
    """Both, for one model."""

    model_fields = {**_SERVER, **_MODEL}  # noqa: RUF012


class ConfigFileSettings(ServerSettings):
    """The settings in a file, for several models."""

    model_fields = {**_SERVER, "models": (list[ModelSettings], [])}  # noqa: RUF012

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.models: list[ModelSettings] = [
            each if isinstance(each, ModelSettings) else ModelSettings.model_validate(each)
            for each in vars(self)["models"]
        ]

    @classmethod
    def read(cls, path: str) -> Self:
        """The settings in a JSON file, or in a YAML file if PyYAML is installed.

        Raises:
            ValueError: there is no such file.
        """
        file = Path(path)
        if not file.exists():
            raise ValueError(f"Config file {path} not found!")
        if file.suffix in (".yaml", ".yml"):
            yaml: Any = import_module("yaml")
            return cls.model_validate(yaml.safe_load(file.read_bytes()))
        return cls.model_validate_json(file.read_bytes())
