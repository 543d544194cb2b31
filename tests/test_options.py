"""What is declared about options is what holds: in calls, when loading, in docs and flags."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import numpy as np
import pytest

from llama_py import Llama, TrimMessages, demo_model_path
from llama_py._native import ggml_h, llama_h
from llama_py.errors import (
    ModelNotFoundError,
    ParameterError,
    ParameterTypeError,
    TemplateError,
    UnknownParameterError,
)
from llama_py.options import CHAT, COMPLETION, GENERATE, LOAD, SAMPLE, Option, Table
from llama_py.options.describe import json_schema
from llama_py.options.marks import Default, Flag, Ignored, Range, SameAs
from llama_py.params import ContextParams, ModelParams, SamplingParams
from tests.counting import calls_of
from tests.ids import spelled_out
from tests.rules import holds_for_all
from tools import option_help
from tools.option_tables import PAGE, page

ROOT = Path(__file__).parent.parent

TABLES: tuple[Table[Any], ...] = (LOAD, COMPLETION, CHAT, SAMPLE, GENERATE)
OPTIONS = [(table, option) for table in TABLES for option in table]
#: Any value is taken, or one that a test of the call itself checks.
FREE = {"grammar", "tools", "tool_choice", "functions", "function_call", "response_format"} | {
    "continue_final_message"
}


# ---- the declarations ------------------------------------------------------------------------


def spelt(case: tuple[Table[Any], Option]) -> str:
    return f"{case[1].name} of {case[0].function}"


def test_every_option_is_declared_whole() -> None:
    holds_for_all(is_declared_whole, OPTIONS, spelt)


def is_declared_whole(case: tuple[Table[Any], Option]) -> None:
    table, option = case
    assert option.doc.endswith((".", ").")), "what does it mean?"
    default = option.default(table.function)
    if option.mark(Default) and default is not None:
        assert option.read(default) == default, "the default is not allowed"
    if not (option.mark(Ignored) or option.mark(SameAs) or option.name in FREE):
        with pytest.raises(ParameterError, match=option.name):
            option.read(object())


def test_ranges_are_kept_and_named() -> None:
    holds_for_all(keeps_its_range, OPTIONS, spelt)


def keeps_its_range(case: tuple[Table[Any], Option]) -> None:
    table, option = case
    limits = option.mark(Range)
    if limits is None:
        return
    for edge, beyond in ((limits.low, -1), (limits.high, 1)):
        if edge is not None:
            assert table.read({option.name: edge})[option.name] == edge
            with pytest.raises(ParameterError, match=rf"{option.name}=.* out of range"):
                table.read({option.name: edge + beyond})


def test_none_is_not_given_where_the_type_says_so() -> None:
    assert CHAT.read({"temperature": None, "stop": None, "n": None}) == {}
    assert CHAT.read({"max_tokens": None, "overflow": None}) == {
        "max_tokens": None,
        "overflow": None,
    }
    with pytest.raises(ParameterTypeError, match="n_ctx must be an integer"):
        LOAD.read({"n_ctx": None})
    assert LOAD.complete({"swa_full": None, "n_threads": None})["swa_full"] is False


def test_complete_adds_every_default() -> None:
    whole = LOAD.complete({"n_ctx": 64})
    assert whole.keys() == LOAD.options.keys()
    assert (whole["n_ctx"], whole["n_batch"], whole["use_mmap"]) == (64, 2048, True)


def test_defaults_of_a_call() -> None:
    assert CHAT["temperature"].default("create_chat_completion") == 0.2
    assert {t["temperature"].default(t.function) for t in (COMPLETION, SAMPLE, GENERATE)} == {0.8}
    assert COMPLETION["max_tokens"].default("create_completion") == 16
    assert CHAT["max_tokens"].default("create_chat_completion") is None


def test_other_names_of_an_option() -> None:
    assert SAMPLE.read({"temp": 0.5, "penalize_nl": True}) == {"temperature": 0.5}
    assert CHAT.read({"max_completion_tokens": 5, "max_tokens": 5}) == {"max_tokens": 5}
    with pytest.raises(ParameterError, match="temp and temperature are the same thing"):
        SAMPLE.read({"temp": 0.5, "temperature": 0.6})
    with pytest.raises(UnknownParameterError):
        CHAT.read({"temp": 0.5})


@pytest.mark.parametrize(
    ("table", "wrong", "right"),
    [
        (CHAT, "strem", "stream"),
        (LOAD, "model_pat", "model_path"),
        (LOAD, "context_length", "n_ctx"),
        (CHAT, "temp", "temperature"),
        (COMPLETION, "tmeout", "timeout"),
    ],
)
def test_a_misspelled_name(table: Table[Any], wrong: str, right: str) -> None:
    with pytest.raises(UnknownParameterError, match=f"did you mean {right!r}"):
        table.read({wrong: 1})


def test_numbers_of_numpy_become_pythons() -> None:
    read = CHAT.read({"temperature": np.float32(0.5), "top_k": np.int64(3)})
    assert [type(value) for value in read.values()] == [float, int]
    assert LOAD.read({"use_mmap": np.bool_(False)}) == {"use_mmap": False}


def test_the_records_of_the_engine_have_the_declared_defaults() -> None:
    given = LOAD.complete({})
    for record in (ModelParams(), ContextParams()):
        for name, value in ((name, getattr(record, name)) for name in record.__slots__):
            if name in given:
                assert given[name] == value, name  # type: ignore[literal-required]
    assert SamplingParams().temperature == 0.8


def test_reading_costs_little_the_first_time_and_next_to_nothing_later() -> None:
    code = (
        "import sys; from llama_py import options as o; from tests.counting import calls_of;"
        "print(calls_of(lambda: [table.options for table in (o.LOAD, o.CHAT, o.COMPLETION)]));"
        "assert 'numpy' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert int(run.stdout) < 30_000  # 13,000 with Python 3.11, which take it 5 ms
    given = {"temperature": 0.3, "top_p": 0.9, "max_tokens": 5, "stop": ["x"], "seed": 3}
    CHAT.read(given)
    assert calls_of(lambda: CHAT.read(given)) < 15 * len(given)


# ---- names in place of numbers ---------------------------------------------------------------

#: Option -> the beginning of the C names.
ENUMERATIONS = {
    "split_mode": (llama_h, "LLAMA_SPLIT_MODE_"),
    "rope_scaling_type": (llama_h, "LLAMA_ROPE_SCALING_TYPE_"),
    "pooling_type": (llama_h, "LLAMA_POOLING_TYPE_"),
    "attention_type": (llama_h, "LLAMA_ATTENTION_TYPE_"),
    "type_k": (ggml_h, "GGML_TYPE_"),
    "type_v": (ggml_h, "GGML_TYPE_"),
}


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_names_mean_what_llama_cpp_calls_so(name: str) -> None:
    header, prefix = ENUMERATIONS[name]
    option = LOAD[name]
    assert option.names == {each: getattr(header, prefix + each.upper()) for each in option.names}
    for each, number in option.names.items():
        spelt = each.upper().replace("_", "-")
        assert option.read(each) == option.read(spelt) == option.read(number) == number
    if header is llama_h:
        known = {key for key in vars(header) if key.startswith(prefix)}
        assert {key.removeprefix(prefix).lower() for key in known} - {"max_value"} == {
            *option.names
        }


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_an_unknown_name_lists_the_valid_ones(name: str) -> None:
    for wrong in ("no-such", 99):
        with pytest.raises(ParameterError, match=f"^{name}=") as caught:
            LOAD.read({name: wrong})
        assert all(repr(each) in str(caught.value) for each in LOAD[name].names)


@pytest.mark.parametrize(
    ("text", "layers"), [("on", -1), ("off", 0), ("-1", -1), ("0", 0), ("12", 12)]
)
def test_layers_that_keep_their_experts_as_text(text: str, layers: int) -> None:
    assert LOAD["cpu_moe"].parse(text) == layers


@pytest.mark.parametrize("text", ["--5", "-", "", "many", "513", "9" * 5000])
def test_layers_that_are_no_number(text: str) -> None:
    with pytest.raises(ParameterError, match="cpu_moe"):
        LOAD["cpu_moe"].parse(text)


@pytest.mark.parametrize("given", [{"\ud800": 1}, {"general.name": "\ud800"}])
def test_half_a_character_in_metadata(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"kv_overrides.* has a lone surrogate"):
        LOAD["kv_overrides"].read(given)
    assert LOAD["kv_overrides"].read({"a\ud83d\ude00": "\ud83d\ude00"}) == {"a😀": "😀"}


def test_flash_attention_by_name() -> None:
    values = [LOAD.read({"flash_attn": value}).get("flash_attn") for value in ("auto", True, False)]
    assert values == [None, True, False]
    with pytest.raises(ParameterError, match='expected True, False or "auto"'):
        LOAD.read({"flash_attn": "maybe"})


def test_a_model_loaded_by_names() -> None:
    names: dict[str, Any] = {
        "type_k": "q8_0",
        "type_v": "bf16",
        "split_mode": "layer",
        "rope_scaling_type": "none",
        "attention_type": "causal",
        "flash_attn": "auto",
    }
    with Llama(demo_model_path(), n_ctx=128, n_threads=1, **names) as llm:
        params = llm.runtime.loaded.context.params
        assert (params.type_k, params.type_v, params.flash_attn) == (8, 30, None)
        assert (params.rope_scaling_type, params.attention_type) == (0, 0)
        assert llm.create_completion("Hello", max_tokens=2, temperature=0, ignore_eos=True)[
            "choices"
        ][0]["text"]


def test_attention_to_what_comes_after_reuses_nothing_by_name_either() -> None:
    for value in ("non_causal", 1):
        options: dict[str, Any] = {"attention_type": value}
        with Llama(demo_model_path(), n_ctx=128, n_threads=1, **options) as llm:
            llm.create_completion("Once upon a time", max_tokens=1)
            again: Any = llm.create_completion("Once upon a time", max_tokens=1)
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_warning_names_the_line_of_the_caller() -> None:
    with Llama(demo_model_path(), n_ctx=128, n_threads=1) as llm:
        calls: list[Callable[[], Any]] = [
            lambda: llm.create_completion("Hello", max_tokens=1, tfs_z=0.5),
            lambda: llm.create_chat_completion(
                [{"role": "user", "content": "Hello!"}], max_tokens=1, tfs_z=0.5
            ),
            lambda: llm.chat_session(max_tokens=1, tfs_z=0.5).send("Hello!"),
            lambda: llm.sample(tfs_z=0.5),
        ]
        for call in calls:
            with pytest.warns(DeprecationWarning, match="tfs_z") as caught:
                call()
            assert {Path(each.filename) for each in caught} == {Path(__file__)}


# ---- before the weights ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"n_ctx": -1}, ParameterError),
        ({"type_k": "q9_0"}, ParameterError),
        ({"chat_format": "no-such-format"}, ParameterError),
        ({"chat_template": "{{"}, TemplateError),
        ({"lora_path": "no-such-adapter.gguf"}, ModelNotFoundError),
        ({"draft_model": object()}, ParameterError),
        ({"overflow": TrimMessages}, ParameterTypeError),
        ({"n_cxt": 5}, UnknownParameterError),
        ({"numa": 7}, ParameterError),
        ({"tensor_split": [1, -1]}, ParameterError),
        ({"kv_overrides": {"x": None}}, ParameterTypeError),
        ({"special_tokens_in_content": "drop"}, ParameterError),
    ],
    ids=spelled_out,
)
def test_mistakes_are_found_before_the_file_is_opened(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception]
) -> None:
    file = tmp_path / "never-opened.gguf"  # opening it would be a ModelNotFoundError of its own
    (name,) = options
    with pytest.raises(kind) as caught:
        Llama(str(file), **options)
    assert "never-opened" not in str(caught.value)
    assert any(word in str(caught.value) for word in (name, name.replace("_", " ")))


# ---- what is made of the declarations ---------------------------------------------------------


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "run python -m tools.option_tables"
    for table in TABLES:
        for option in table:
            assert f"| `{option.name}` |" in text


def test_the_texts_for_help_are_up_to_date() -> None:
    assert option_help.FILE.read_text(encoding="utf-8") == option_help.written(), (
        "run python -m tools.option_help"
    )
    for call, table in ((Llama.create_chat_completion, CHAT), (Llama.__init__, LOAD)):
        shown = inspect.getdoc(call) or ""
        for option in table:
            assert (f"\n    {option.name} (" in shown) == (option.mark(Ignored) is None)


@pytest.mark.parametrize("table", [CHAT, COMPLETION], ids=lambda table: table.function)
def test_the_json_schema_takes_what_the_call_takes(table: Table[Any]) -> None:
    schema = json_schema(table)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    good: list[dict[str, Any]] = [
        {},
        {"temperature": 0.5, "top_k": 3, "stop": "x", "max_tokens": None},
        {"stop": ["a"], "logit_bias": {"5": -1}, "stop_token_ids": [1], "store": {}},
        {"stream_options": {"include_usage": True}, "seed": 7, "n": 2, "stop_token_ids": None},
    ]
    bad: list[dict[str, Any]] = [
        {"temperature": "hot"}, {"top_p": 1.5}, {"n": 0}, {"max_token": 5}, {"stop": 5},
        {"ignore_eos": "yes"}, {"stop_token_ids": [-1]},
    ]  # fmt: skip
    for options in good:
        assert check.is_valid(options), options
        table.read(options)
    for options in bad:
        assert not check.is_valid(options), options
        with pytest.raises(ParameterError):
            table.read(options)
    json_only = set(table.options) - set(schema["properties"])
    functions = {"logits_processor", "on_progress", "stopping_criteria"}
    assert json_only <= {*functions, "overflow", "speculative"}


def test_flags_check_their_values_and_know_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from llama_py.cli import main

    for flags, expected in (
        (["--top-p", "7"], "top_p=7.0 is out of range: allowed is 0.0 to 1.0"),
        (["--type-k", "q9"], "expected one of 'f32' (0)"),
        (["--flash-attn", "maybe"], 'expected True, False or "auto"'),
        (["--n-ctx", "many"], "n_ctx must be an integer"),
    ):
        assert main(["chat", *flags, "hi"]) == 2
        assert expected in capsys.readouterr().err
    assert main(["chat", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in (*LOAD, *COMPLETION):
        flag = option.mark(Flag)
        assert flag is None or flag.flags[-1] in shown


def test_the_constructor_takes_what_is_declared() -> None:
    taken = inspect.signature(Llama.__init__).parameters
    if any(each.kind is each.VAR_KEYWORD and each.name == "options" for each in taken.values()):
        return  # the declaration is the signature
    declared = set(get_type_hints(LOAD.declaration)) - {"check_tensors"}
    assert declared == {*taken} - {"self", "model_path", "unknown"}


def test_what_few_need_is_not_imported() -> None:
    """Modules for event loops are a tenth of the time to load the package."""
    code = "import sys; from llama_py import Llama; print({'asyncio', 'ssl'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
