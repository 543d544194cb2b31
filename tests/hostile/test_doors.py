"""Files reach native code through one door for each kind: no loader leaves out its check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import llama_py
from llama_py.compat import c_parameters

PACKAGE = Path(llama_py.__file__).parent
#: Modules in which a C function is called with a path, and the check that they call before.
DOORS = {
    ("llama_model_load_from_file", "core/model.py"): "check_model_file",
    ("llama_model_load_from_file", "cli/inspect.py"): "check_model_file",
    #: In a process of its own, and of a model that was loaded already.
    ("llama_model_load_from_file", "core/projector_trial.py"): "trial_load",
    ("llama_model_load_from_file", "compat/handles.py"): "check_model_file",
    ("llama_adapter_lora_init", "core/lora.py"): "check_adapter_file",
    ("mtmd_init_from_file", "core/projector.py"): "rehearse",
}
#: Of files that the program writes itself, or that are none of a stranger's.
OURS = {"ggml_backend_load", "ggml_backend_load_all_from_path"}


def with_paths() -> set[str]:
    """The declared C functions that have the path of a file among their parameters."""
    text = Path(c_parameters.__file__).read_text(encoding="utf-8")
    found = re.findall(r"'(\w+)': '([^']*)'", text)
    words = re.compile(r"\b(path\w*|\w*fname|filename|file|dir_path)\b")
    return {name for name, parameters in found if words.search(parameters)}


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }


def test_every_loader_of_files_checks_them() -> None:
    functions = with_paths() - OURS
    assert {"llama_model_load_from_file", "llama_adapter_lora_init"} <= functions
    assert {"mtmd_init_from_file", "mtmd_helper_bitmap_init_from_file"} <= functions
    found = {
        (name, path.relative_to(PACKAGE).as_posix())
        for path in PACKAGE.rglob("*.py")
        if "_native" not in path.parts
        for name in calls(path) & functions
    }
    assert found == {*DOORS}
    for (name, module), check in DOORS.items():
        source = (PACKAGE / module).read_text(encoding="utf-8")
        assert check in source, f"{module} calls {name} without {check}"
