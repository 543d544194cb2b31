"""``ClusterSettings``: the file of ``llama-py cluster deploy``.

Its table ``server`` has what the file of ``llama-py serve`` has; the rest says how many replicas
there are, what each may take, and how requests are shared out.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from llama_py.cluster.policy import PolicySettings
from llama_py.demo import demo_model_path
from llama_py.errors import MissingPackageError, ParameterError, UnknownParameterError, shown
from llama_py.options.checks import check_number
from llama_py.server.config.configuration import Given, read_configuration
from llama_py.server.config.settings import Settings
from llama_py.server.serve import check

__all__ = ["ClusterSettings", "read_cluster"]

_NAME = "llama-py"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """How many replicas there are, and what they do.

    Attributes:
        server: the settings of the server; its ``host`` and ``port`` are the cluster's address.
        name: of the application in Ray.
        replicas: how many at the start, and always unless ``max_replicas`` is set.
        max_replicas: scale between ``replicas`` and this by load; None does not.
        target_requests: scale so that each replica has about so many requests in flight.
        upscale_seconds, downscale_seconds: how long there must be more or less of them before
            replicas come or go.
        max_requests: in flight at one replica; more wait until there is room.
        cpus, gpus: of the machines, for each replica. Its models' ``n_threads`` are to fit.
        gateways: processes that take requests. Rates of keys are counted in each of them.
        routing: ``"prefix"`` knows texts and sessions; ``"default"`` is Ray's own choice of the
            less busy of two.
        state_seconds: how often replicas say what they hold.
        policy: what the choice of a replica weighs.

    Raises:
        ParameterError: a value is not allowed, or contradicts another one.
    """

    server: Settings = field(default_factory=Settings)
    name: str = _NAME
    replicas: int = 1
    max_replicas: int | None = None
    target_requests: float = 4.0
    upscale_seconds: float = 5.0
    downscale_seconds: float = 60.0
    max_requests: int = 64
    cpus: float = 1.0
    gpus: float = 0.0
    gateways: int = 1
    routing: Literal["prefix", "default"] = "prefix"
    state_seconds: float = 2.0
    policy: PolicySettings = field(default_factory=PolicySettings)

    def __post_init__(self) -> None:
        for name in ("replicas", "max_requests", "gateways"):
            check_number(name, getattr(self, name), 1, 10_000, integer=True)
        for name in ("target_requests", "state_seconds"):
            check_number(name, getattr(self, name), 0.05, 3600)
        for name in ("upscale_seconds", "downscale_seconds", "cpus", "gpus"):
            check_number(name, getattr(self, name), 0, 86_400)
        if self.max_replicas is not None:
            check_number("max_replicas", self.max_replicas, self.replicas, 10_000, integer=True)
        if self.routing not in ("prefix", "default"):
            raise ParameterError(f"routing={shown(self.routing)} must be prefix or default")
        if not isinstance(self.name, str) or not self.name:
            raise ParameterError(f"name={shown(self.name)} must be a text that is not empty")
        server = self.server
        if len(server.addresses) != 1 or not server.network_hosts:
            raise ParameterError(
                f"host={server.host}: a cluster listens at one address of the network; for a Unix "
                "socket or several addresses, put a proxy in front"
            )
        if server.root_path:
            raise ParameterError(
                "root_path is not used in a cluster; have the proxy strip it, and leave it out"
            )

    def check(self) -> None:
        """Raise if it could not work. Nothing is loaded.

        Raises:
            ModelNotFoundError, ParameterError, OSError: as ``llama_py.server.serve.check``.
        """
        check(self.server)


def read_cluster(path: Path | None, environ: Mapping[str, str] = os.environ) -> ClusterSettings:
    """The settings in a YAML file; those of three replicas of the bundled model without one.

    Args:
        environ: settings of the server in the environment take precedence, as for ``serve``.

    Raises:
        ParameterError: it is no such file, or a value is not allowed; the message says which.
        OSError: it cannot be read.
        MissingPackageError: there is nothing that reads YAML.
    """
    if path is not None:
        place, table = path, _parse(path)
    else:
        model = {"path": demo_model_path(), "n_threads": 1, "n_threads_batch": 1, "n_seq_max": 4}
        place = Path("cluster.yaml")
        table = {"replicas": 3, "server": {"port": 8000, "model": [model]}}
    server = _mapping(place, "server", table.pop("server", {}))
    given = Given(table=(place, server))
    settings = read_configuration(given, environ, demo_model_path).settings
    policy = _mapping(place, "policy", table.pop("policy", {}))
    _refuse_unknown(place, table, {each.name for each in fields(ClusterSettings)})
    _refuse_unknown(place, policy, {each.name for each in fields(PolicySettings)})
    try:
        for name, value in policy.items():
            check_number(f"policy.{name}", value, 0)
        return ClusterSettings(server=settings, policy=PolicySettings(**policy), **table)
    except ParameterError as error:
        raise type(error)(f"{place}: {error}") from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        message = f"reading {path} needs the package pyyaml: pip install 'llama-py[ray]'"
        raise MissingPackageError(message) from None
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} is not YAML: {error}") from None
    return _mapping(path, "the file", {} if table is None else table)


def _mapping(path: Path, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value):
        raise ParameterError(f"{path}: {name} must be a table of names and values")
    return dict(value)


def _refuse_unknown(path: Path, table: Mapping[str, Any], known: set[str]) -> None:
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; it may have {sorted(known)}"
            raise UnknownParameterError(f"{path}: there is no setting {name}{hint}")
