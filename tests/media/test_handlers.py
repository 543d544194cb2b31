"""Handlers of llama-cpp-python for pictures: each shows them, in the prompt of its model."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py.compat import vision
from llama_py.compat.llama_cpp import Llama
from llama_py.errors import MediaError, TemplateError
from tests.media.pictures import disc, gradient, png
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model

HANDLERS = [name for name in vision.__all__ if name.endswith("Handler")]
SEEN = "<PICTURE>"

#: What the makers of the models say of their prompts, for CONVERSATION.
SYSTEM = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the human's questions."
)
QWEN = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
PROMPTS = {
    "Llava15ChatHandler": f"{SYSTEM}\nUSER: {SEEN}\nWhat is it?\nASSISTANT: A disc.</s>"
    "\nUSER: Sure?\nASSISTANT:",
    "Llava16ChatHandler": f"{SYSTEM} USER: {SEEN}\nWhat is it? ASSISTANT: A disc.</s>"
    "USER: Sure? ASSISTANT:",
    "ObsidianChatHandler": f"<|im_start|>user\n{SEEN}\nWhat is it?\n###\n<|im_start|>assistant\n"
    "A disc.\n###\n<|im_start|>user\nSure?\n###\n<|im_start|>assistant\n",
    "MoondreamChatHandler": f"{SEEN}\n\nQuestion: What is it?\n\nAnswer: A disc.\n\n"
    "Question: Sure?\n\nAnswer:",
    "NanoLlavaChatHandler": "<|im_start|>system\nAnswer the question<|im_end|>"
    f"<|im_start|>user\n{SEEN}\nWhat is it?<|im_end|><|im_start|>assistant\nA disc.<|im_end|>"
    "<|im_start|>user\nSure?<|im_end|><|im_start|>assistant\n",
    "Llama3VisionAlphaChatHandler": "<|start_header_id|>user<|end_header_id|>\n\n"
    f"{SEEN}What is it?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA disc."
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "MiniCPMv26ChatHandler": f"{QWEN}<|im_start|>user\n{SEEN}\nWhat is it?<|im_end|>\n"
    "<|im_start|>assistant\nA disc.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Qwen25VLChatHandler": f"{QWEN}<|im_start|>user\nWhat is it?{SEEN}<|im_end|>\n"
    "<|im_start|>assistant\nA disc.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
    "<|im_start|>assistant\n",
}


def asked(url: Any, text: str = "What is it?") -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]
    return [{"role": "user", "content": parts}]


def data_url(picture: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"


def opened(**options: Any) -> Any:
    return closing(Llama(str(media_model("full")), n_ctx=512, verbose=False, **options))


def projector(kind: str = "mlp") -> str:
    return str(tiny_projector(kind))


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    model = Llama(str(media_model("full")), n_ctx=2048, verbose=False, mmproj=projector())
    yield model
    model.close()


@pytest.mark.parametrize("name", HANDLERS)
def test_every_handler_shows_pictures(llm: Any, name: str) -> None:
    llm.chat_handler = getattr(vision, name)(clip_model_path=projector(), verbose=False)
    said, rows = {}, {}
    for each, url in (("disc", data_url(disc())), ("other", {"url": data_url(gradient())})):
        options: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
        reply = llm.create_chat_completion(asked(url), **options)
        said[each] = reply["choices"][0]["message"]["content"]
        assert reply["usage"]["prompt_tokens"] > 16
        chunks = [*llm.create_chat_completion(asked(url), stream=True, **options)]
        deltas = (chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert "".join(deltas) == said[each]
        llm.create_chat_completion(asked(url), **{**options, "max_tokens": 1})
        rows[each] = llm.native.last_logits
    assert not np.allclose(rows["disc"], rows["other"])


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_prompts_are_those_of_the_makers(name: str) -> None:
    handler = getattr(vision, name)
    made = vision._formatter(handler.CHAT_FORMAT)
    content = [{"type": "text", "text": "What is it?"}, {"type": "media_marker", "text": SEEN}]
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "A disc."},
        {"role": "user", "content": "Sure?"},
    ]
    if handler.DEFAULT_SYSTEM_MESSAGE is not None:
        messages.insert(0, {"role": "system", "content": handler.DEFAULT_SYSTEM_MESSAGE})
    assert made(messages=messages, bos_token="<s>", eos_token="</s>").prompt == PROMPTS[name]


def test_the_handlers_with_a_prompt_are_these() -> None:
    own = {name for name in HANDLERS if getattr(vision, name).CHAT_FORMAT is not None}
    assert own == set(PROMPTS)


def test_a_program_may_have_a_prompt_of_its_own(llm: Any) -> None:
    """As the documentation of llama-cpp-python shows it."""

    class Mine(vision.Llava15ChatHandler):
        DEFAULT_SYSTEM_MESSAGE = None
        CHAT_FORMAT = (
            "{% for message in messages %}{% for content in message.content %}"
            "{% if content.type == 'image_url' and content.image_url is mapping %}"
            "{{ content.image_url.url }}{% endif %}"
            "{% if content.type == 'text' %}{{ content.text }}{% endif %}"
            "{% endfor %}{% endfor %}"
        )

    class Blind(Mine):
        CHAT_FORMAT = "{{ messages[0].role }}:"

    llm.chat_handler = Mine(projector())
    reply = llm.create_chat_completion(asked(data_url(disc())), max_tokens=1)
    text = len(llm.tokenize(b"What is it?"))
    assert reply["usage"]["prompt_tokens"] == text + 16
    llm.chat_handler = Blind(projector())
    with pytest.raises(TemplateError, match="leaves out"):
        llm.create_chat_completion(asked(data_url(disc())), max_tokens=1)


def test_a_program_may_load_pictures_itself(llm: Any) -> None:
    seen = []

    class Mine(vision.Llava15ChatHandler):
        def load_image(self, image_url: str) -> bytes:
            seen.append(image_url)
            return png(disc())

    llm.chat_handler = Mine(projector())
    address = "https://example.com/disc.png"
    assert llm.create_chat_completion(asked(address), max_tokens=1)["choices"]
    assert seen == [address]


def test_which_addresses_are_read(llm: Any, tmp_path: Path) -> None:
    handler = vision.MTMDChatHandler(projector(), use_gpu=False)
    llm.chat_handler = handler
    path = tmp_path / "a disc.png"
    path.write_bytes(png(disc()))
    urls = (str(path), path.as_uri(), data_url(disc()))
    for url in urls:
        assert handler.load_image(url) == png(disc())
    usages = [llm.create_chat_completion(asked(u), max_tokens=1)["usage"] for u in urls]
    assert usages[0] == usages[1] == usages[2]
    for call in (handler.load_image, lambda url: llm.create_chat_completion(asked(url))):
        with pytest.raises(MediaError, match="allow_urls"):
            call("http://example.com/disc.png")
        with pytest.raises(ValueError, match="cannot be read"):
            call(str(tmp_path / "none.png"))


def test_media_paths_hold_for_handlers_too(tmp_path: Path) -> None:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "disc.png").write_bytes(png(disc()))
    handler = vision.MTMDChatHandler(projector())
    paths = [tmp_path / "open"]
    with opened(chat_handler=handler, media_paths=paths) as llm:
        url = (tmp_path / "open" / "disc.png").as_uri()
        assert llm.create_chat_completion(asked(url), max_tokens=1)["choices"]
        with pytest.raises(MediaError, match="media_paths"):
            llm.create_chat_completion(asked((tmp_path / "closed" / "disc.png").as_uri()))


def test_a_function_that_has_to_be_called(llm: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"red": {"type": "boolean"}},
        "required": ["red"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "paint", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "paint"}}
    llm.chat_handler = vision.Llava15ChatHandler(projector())
    options = {"tools": [tool], "tool_choice": choice, "temperature": 0, "max_tokens": 40}
    reply = llm.create_chat_completion(asked(data_url(disc())), **options)
    call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "paint"
    assert "red" in call["arguments"]
    chunks = [*llm.create_chat_completion(asked(data_url(disc())), stream=True, **options)]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    texts = [
        delta["tool_calls"][0]["function"]["arguments"]
        for delta in deltas
        if delta.get("tool_calls")
    ]
    assert "".join(texts) == call["arguments"]
    with pytest.raises(ValueError, match="not found in tools"):
        llm.create_chat_completion(
            asked(data_url(disc())), tools=[tool], tool_choice={"function": {"name": "x"}}
        )


def test_one_model_sees_by_one_projector() -> None:
    with opened() as llm:
        llm.chat_handler = vision.MTMDChatHandler(projector())
        assert llm.create_chat_completion(asked(data_url(disc())), max_tokens=1)["choices"]
        llm.chat_handler = vision.MTMDChatHandler(projector("gemma3"))
        with pytest.raises(ValueError, match="already"):
            llm.create_chat_completion(asked(data_url(disc())), max_tokens=1)


def test_settings_of_the_server_mean_handlers() -> None:
    from llama_py.compat.llama_cpp.server.app import native_settings
    from llama_py.compat.llama_cpp.server.model import LlamaProxy
    from llama_py.compat.llama_cpp.server.settings import ModelSettings, ServerSettings

    settings = ModelSettings(
        model=str(media_model("full")),
        chat_format="llava-1-5",
        clip_model_path=projector(),
        n_ctx=1024,
        use_mlock=False,
        verbose=False,
    )
    with closing(LlamaProxy.load_llama_from_model_settings(settings)) as llm:
        assert isinstance(llm.chat_handler, vision.Llava15ChatHandler)
        assert llm.create_chat_completion(asked(data_url(disc())), max_tokens=1)["choices"]
    model = native_settings(ServerSettings(), [settings]).models[0]
    assert model.options["mmproj"] == projector()
    assert model.options["chat_format"] == "vicuna"
