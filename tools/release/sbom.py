"""The bill of materials: a CycloneDX document of what the wheels contain and what they require."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from llama_py.version import __version__
from tools.plugin_wheel import read_toml
from tools.release import sources

__all__ = ["document"]

ROOT = Path(__file__).resolve().parents[2]


def document(tree: Path) -> str:
    """The document as JSON.

    Args:
        tree: llama.cpp's source.
    """
    project = read_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bom = Bom()
    package = _component("llama-py", __version__, project["license"], purl=_pypi("llama-py"))
    bom.metadata.component = package
    native = _llama_cpp()
    inside = [
        _component(each.name, sources.version_of(each, tree) or None, each.licence)
        for each in sources.INSIDE
    ]
    required = [_required(text, ComponentScope.REQUIRED) for text in project["dependencies"]]
    optional = [
        _required(text, ComponentScope.OPTIONAL)
        for name, extra in project["optional-dependencies"].items()
        if name in ("hub", "structured", "server", "server-fast")
        for text in extra
        if not text.startswith("llama-py")
    ]
    models = [_model(path) for path in sorted((ROOT / "llama_py" / "models").glob("*.gguf"))]
    for component in (native, *inside, *required, *optional, *models):
        bom.components.add(component)
    bom.register_dependency(package, [native, *required, *optional, *models])
    bom.register_dependency(native, inside)
    output: str = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(
        indent=1
    )
    return output


def _component(name: str, version: str | None, licence: str = "", **more: Any) -> Component:
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    kind = more.pop("type", ComponentType.LIBRARY)
    return Component(name=name, version=version, licenses=licences, type=kind, bom_ref=name, **more)


def _llama_cpp() -> Component:
    """The pin: what it is, and the archive that it was taken from."""
    pin = sources.pin()
    archive = pin["archive"]
    reference = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"pkg:pypi/{archive['package']}@{archive['version']}"),
        comment=f"the source distribution; llama.cpp is below {archive['prefix']}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=archive["sha256"])],
    )
    return _component(
        "llama.cpp",
        pin["commit"],
        "MIT",
        purl=PackageURL("github", "ggml-org", "llama.cpp", pin["commit"]),
        external_references=[reference],
    )


def _required(text: str, scope: ComponentScope) -> Component:
    """A package that pip installs beside: of a range, not of one version."""
    found = re.match(r"([A-Za-z0-9_.-]+)\s*([^;]*)(?:;(.*))?$", text)
    assert found is not None
    name, allowed, condition = (part.strip() if part else "" for part in found.groups())
    properties = [Property(name="llama-py:requires", value=allowed)]
    if condition:
        properties.append(Property(name="llama-py:condition", value=condition))
    return _component(name, None, purl=_pypi(name, None), scope=scope, properties=properties)


def _model(path: Path) -> Component:
    found = HashType(alg=HashAlgorithm.SHA_256, content=sources.digest(path))
    kind = ComponentType.MACHINE_LEARNING_MODEL
    return _component(path.name, __version__, "MIT", type=kind, hashes=[found])


def _pypi(name: str, version: str | None = __version__) -> PackageURL:
    return PackageURL("pypi", None, name.lower().replace("_", "-"), version)
