"""``abi_check.c`` compiles against the pinned headers, and against no others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.declarations import generate, parse

DRIFTS = {
    "a field moved": (
        "include/llama.h",
        "        llama_token  *  token;\n        float        *  embd;",
        "        float        *  embd;\n        llama_token  *  token;",
        "llama_batch.token offset",
    ),
    "a field was inserted": (
        "include/llama.h",
        "        bool vocab_only;      // only load",
        "        bool brand_new; bool vocab_only; // only load",
        "llama_model_params.vocab_only offset",
    ),
    "a field was appended": (
        "tools/mtmd/mtmd.h",
        "    void * progress_callback_user_data;\n};",
        "    void * progress_callback_user_data;\n    int more;\n};",
        "mtmd_context_params",
    ),
    "a field changed its type and kept its size": (
        "include/llama.h",
        "        float logit;    //",
        "        int32_t logit;  //",
        "llama_token_data.logit type",
    ),
    "a member of a nested struct moved": (
        "ggml/include/ggml-opt.h",
        "            float beta1; // first AdamW momentum\n            float beta2;",
        "            float beta2; // first AdamW momentum\n            float beta1;",
        "ggml_opt_optimizer_params.adamw.beta1 offset",
    ),
    "an enum constant changed": (
        "ggml/include/ggml.h",
        "GGML_TYPE_Q8_0    = 8,",
        "GGML_TYPE_Q8_0    = 108,",
        "GGML_TYPE_Q8_0",
    ),
    "a macro changed": (
        "include/llama.h",
        "#define LLAMA_TOKEN_NULL -1",
        "#define LLAMA_TOKEN_NULL -2",
        "LLAMA_TOKEN_NULL",
    ),
    "a function got an argument": (
        "include/llama.h",
        "llama_get_logits(struct llama_context * ctx);",
        "llama_get_logits(struct llama_context * ctx, int32_t more);",
        "llama_get_logits",
    ),
    "an argument changed its type": (
        "ggml/include/gguf.h",
        "gguf_get_val_u8  (const struct gguf_context * ctx, int64_t key_id);",
        "gguf_get_val_u8  (const struct gguf_context * ctx, int32_t key_id);",
        "gguf_get_val_u8",
    ),
    "a function is gone": (
        "ggml/include/ggml.h",
        "GGML_API const char * ggml_status_to_string(enum ggml_status status);",
        "",
        "ggml_status_to_string",
    ),
}


def compile_check(cc: str, source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    include = generate.include_directories(source)
    command = [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-c", "-o", str(out)]
    command += [f"-I{path}" for path in include] + [str(generate.ABI_CHECK)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compiles_against_the_pinned_headers(cc: str, llama_cpp: Path, tmp_path: Path) -> None:
    done = compile_check(cc, llama_cpp, tmp_path / "abi_check.o")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "target",
    [
        "aarch64-unknown-linux-gnu",
        "arm64-apple-macosx11",
        "x86_64-pc-windows-msvc",
        "x86_64-w64-windows-gnu",
        "aarch64-pc-windows-msvc",
    ],
)
def test_holds_on_other_platforms(llama_cpp: Path, target: str) -> None:
    text = generate.ABI_CHECK.read_text(encoding="utf-8")
    unit = parse.translate(text, generate.include_directories(llama_cpp), target)
    assert parse.errors_of(unit) == []


@pytest.mark.parametrize("drift", DRIFTS)
def test_does_not_compile_against_drifted_headers(
    cc: str, headers: Path, tmp_path: Path, drift: str
) -> None:
    name, old, new, named = DRIFTS[drift]
    text = (headers / name).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (headers / name).write_text(text.replace(old, new), encoding="utf-8")
    done = compile_check(cc, headers, tmp_path / "abi_check.o")
    assert done.returncode != 0
    assert named in done.stderr


@pytest.mark.slow
def test_a_build_of_another_llama_cpp_ends_with_a_sentence(
    llama_cpp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers are compared, and no library is made."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja")
    other, build = tmp_path / "other", tmp_path / "build"
    shutil.copytree(llama_cpp, other, copy_function=os.symlink)
    header = other / "include" / "llama.h"
    text = header.read_text(encoding="utf-8")
    header.unlink()
    header.write_text(text.replace("uint32_t n_ctx; ", "uint64_t n_ctx; ", 1), encoding="utf-8")
    assert header.read_text(encoding="utf-8") != text
    monkeypatch.setenv("LLAMA_PY_LLAMA_CPP_DIR", str(other))
    configure = [cmake, "-S", str(generate.CHECKOUT), "-B", str(build), "-G", "Ninja"]
    subprocess.run(configure, check=True, capture_output=True)
    done = subprocess.run(
        [ninja, "-C", build, "ggml-base"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "this llama.cpp is not the declared one, see vendor/README.md" in done.stdout
    assert "llama_context_params.n_ctx size" in done.stdout
    assert not [*build.rglob("*ggml-base.*so")]
