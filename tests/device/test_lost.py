"""A device that its driver gives up, by a Vulkan layer that says so (``losing_layer.c``).

What runs on it is to fail with an error of ours, in a process that goes on. Upstream, it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llama_py.core import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not any(each["name"].startswith("Vulkan") for each in backend.devices()),
        reason="no device of Vulkan",
    ),
]

SCRIPT = """
import os, sys
from pathlib import Path
from llama_py import Llama, demo_model_path
from llama_py.errors import DeviceLostError

lose = Path(os.environ["LOSE_DEVICES"])

def reply(llm):
    asked = [{"role": "user", "content": "Count to 9."}]
    given = llm.create_chat_completion(asked, max_tokens=30, temperature=0.0)
    return given["choices"][0]["message"]["content"]

def begun(llm, prompt):
    stream = llm.create_completion(prompt, max_tokens=400, ignore_eos=True, stream=True)
    next(stream)
    return stream

def lost(name, call):
    try:
        call()
    except DeviceLostError as error:
        print(name, "DeviceLostError", str(error).split(":")[0], flush=True)

llm = Llama(demo_model_path(), n_ctx=1024, n_seq_max=1)
other = Llama(demo_model_path(), n_ctx=512)
cpu = Llama(demo_model_path(), n_ctx=512, devices=[])
assert llm.runtime.loaded.model.devices and not cpu.runtime.loaded.model.devices
expected = reply(llm)
stream = begun(llm, "Once upon")
lose.touch()
lost("stream", lambda: list(stream))
lost("next call", lambda: reply(llm))
lost("state", lambda: llm.runtime.loaded.context.state_get(0))
lost("other model", lambda: reply(other))
print("cpu", reply(cpu) == expected, flush=True)
llm.close()
other.close()
with Llama(demo_model_path(), n_ctx=512, devices=[]) as new:
    print("new on cpu", reply(new) == expected, flush=True)
lose.unlink()
with Llama(demo_model_path(), n_ctx=512) as new:
    print("new on", *new.runtime.loaded.model.devices, reply(new) == expected, flush=True)
"""


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the layer and its manifest."""
    compiler, folder = shutil.which("cc"), tmp_path_factory.mktemp("layer")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, made = Path(__file__).with_name("losing_layer.c"), folder / "liblosing.so"
    command = [compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "vk_layer.h" in done.stderr:
        pytest.skip("needs vulkan/vk_layer.h (libvulkan-dev; CPATH says where it is)")
    assert done.returncode == 0, done.stderr
    described = {
        "name": "VK_LAYER_llama_py_lose",
        "type": "GLOBAL",
        "library_path": str(made),
        "api_version": "1.3.0",
        "implementation_version": "1",
        "description": "loses devices",
    }
    manifest = {"file_format_version": "1.0.0", "layer": described}
    (folder / "lose.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def test_what_runs_on_it_fails_and_the_process_goes_on(layer: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "VK_LAYER_PATH": str(layer),
        "VK_INSTANCE_LAYERS": "VK_LAYER_llama_py_lose",
        "LOSE_DEVICES": str(tmp_path / "lose"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    device = backend.devices()[0]["name"]
    of = f"DeviceLostError the device {device} is lost"
    assert said == [
        *(f"{what} {of}" for what in ("stream", "next call", "state", "other model")),
        "cpu True",
        "new on cpu True",
        f"new on {device} True",
    ]
