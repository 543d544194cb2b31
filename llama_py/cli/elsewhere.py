"""Answers to options and commands of other programs: llama-server, llama-cli, Ollama."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ALIASES", "COMMANDS", "LLAMA_CLI", "LLAMA_SERVER", "with_aliases"]

#: Further names of flags, the same for all commands; some are those of llama.cpp's programs.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "--temp": ("--temperature",),
    "--max-tokens": ("-n", "--n-predict"),
    "--n-ctx": ("-c", "--ctx-size"),
    "--flash-attn": ("-fa",),
    "--n-gpu-layers": ("--gpu-layers",),
    "--device": ("-dev",),
    "--system": ("-sys", "--system-prompt"),
    "--n-seq-max": ("-np", "--parallel"),
    "--parallel": ("--n-seq-max",),
    "--json-schema": ("-j",),
}


def with_aliases(*flags: str) -> list[str]:
    """The flags of an option with their further names, short ones first."""
    more = (alias for flag in flags for alias in ALIASES.get(flag, ()))
    return sorted(dict.fromkeys([*flags, *more]), key=lambda flag: flag.startswith("--"))


_HUB = "it is --hf here"
_DRAFT = "it is --speculative draft=FILE here"
_JINJA = "leave it out, since templates always are Jinja here"
_TEMPLATE = "it is --chat-template here"

#: Options of llama-server.
LLAMA_SERVER: Mapping[str, str] = {
    "--alias": "any name is the only model; for several, write aliases into the file of --config",
    "--slot-save-path": "it is --slot-dir here",
    "--cache-ram": "it is parking_bytes of a model in the file of --config",
    "--cache-reuse": "what is in memory is always reused where it is right",
    "--context-shift": "a conversation is never shortened unless a request says so",
    "--timeout": "it is --request-timeout, --queue-timeout and --write-timeout here",
    "--chat-template-file": _TEMPLATE,
    "--jinja": _JINJA,
    "--no-jinja": "leave it out; --chat-template takes the same names",
    "--reasoning-format": "a request has reasoning_format",
    "--verbose": "it is --log-level debug here",
    "--embeddings": "leave it out, since every model embeds",
    "--embedding": "leave it out, since every model embeds",
    "--rerank": "leave it out, since every reranker ranks",
    "--reranking": "leave it out, since every reranker ranks",
    "--slots": "leave it out, since /slots is always there",
    "--no-slots": "/slots needs the scope admin where there are API keys",
    "--props": "/props does not change while the server runs",
    "--no-webui": "it is --no-ui here",
    "-cb": "leave it out, since requests always are batched together",
    "--cont-batching": "leave it out, since requests always are batched together",
    "-b": "it is n_batch of a model in the file of --config",
    "-ub": "it is n_ubatch of a model in the file of --config",
    "--batch-size": "it is n_batch of a model in the file of --config",
    "--ubatch-size": "it is n_ubatch of a model in the file of --config",
    "--mlock": "it is use_mlock of a model in the file of --config",
    "--no-mmap": "it is use_mmap of a model in the file of --config",
    "-nr": "it is repack of a model in the file of --config",
    "--no-repack": "it is repack of a model in the file of --config",
    "-md": _DRAFT,
    "--model-draft": _DRAFT,
    "--ssl-cert-file": "it is --tls-cert here",
    "--ssl-key-file": "it is --tls-key here",
    "--api-prefix": "it is --root-path here, if a proxy strips that path",
    "--moe-cache-mib": "it is --moe-cache-size here, in bytes",
    "-hf": _HUB,
    "--hf-repo": _HUB,
}

_IN_PYTHON = "it is an argument of Llama in Python, and of a model in the file of llama-py serve"
_TURN = "leave it out, since with a PROMPT there is one turn"
_TALK = "it is -i (--interactive) here"
_PROMPT = 'write the prompt by itself: llama-py chat "Hello!"'
_FROM_FILE = "send the file to standard input: llama-py chat < FILE"
_LINES = 'leave it out, since pasted lines are one message, and """ begins and ends others'
#: Options of llama-cli, llama-completion, llama-embedding and Ollama.
LLAMA_CLI: Mapping[str, str] = {
    "-p": _PROMPT,
    "--prompt": _PROMPT,
    "-f": _FROM_FILE,
    "--file": _FROM_FILE,
    "-bf": _FROM_FILE,
    "--binary-file": _FROM_FILE,
    "-sysf": 'it is --system "$(cat FILE)" here',
    "--system-prompt-file": 'it is --system "$(cat FILE)" here',
    "-st": _TURN,
    "--single-turn": _TURN,
    "-cnv": _TALK,
    "--conversation": _TALK,
    "-no-cnv": "it is llama-py generate here",
    "--no-conversation": "it is llama-py generate here",
    "-if": _TALK,
    "--interactive-first": _TALK,
    "-hf": _HUB,
    "-hfr": _HUB,
    "--hf-repo": _HUB,
    "-hff": "it is --hf OWNER/NAME:QUANT here",
    "--hf-file": "it is --hf OWNER/NAME:QUANT here",
    "-mu": "download the file, and name it with -m",
    "--model-url": "download the file, and name it with -m",
    "-md": _DRAFT,
    "--model-draft": _DRAFT,
    "-co": "leave it out, since thoughts are dim on a terminal; NO_COLOR=1 turns that off",
    "--color": "leave it out, since thoughts are dim on a terminal; NO_COLOR=1 turns that off",
    "-mli": _LINES,
    "--multiline-input": _LINES,
    "-r": "it is --stop here",
    "--reverse-prompt": "it is --stop here",
    "-sp": "leave it out; special tokens are not part of a reply",
    "--special": "leave it out; special tokens are not part of a reply",
    "-e": "leave it out; write line breaks as they are",
    "--escape": "leave it out; write line breaks as they are",
    "--no-display-prompt": "leave it out, since the prompt is printed with --echo only",
    "--no-warmup": "leave it out, since nothing is evaluated before the prompt",
    "--show-timings": "it is --stats here",
    "--perf": "it is --stats here",
    "-jf": "it is --json-schema FILE here",
    "--json-schema-file": "it is --json-schema FILE here",
    "--grammar-file": "it is --grammar FILE here",
    "--chat-template-file": _TEMPLATE,
    "--jinja": _JINJA,
    "--no-jinja": "leave it out; --chat-template takes the same names",
    "--reasoning-budget": "it is --no-think here, or a request of llama-py serve",
    "-rea": "it is --no-think here",
    "--reasoning": "it is --no-think here",
    "-mm": "it is --mmproj here",
    "-tb": "it is --threads here, also for prompts",
    "--threads-batch": "it is --threads here, also for prompts",
    "-b": _IN_PYTHON,
    "-ub": _IN_PYTHON,
    "--batch-size": _IN_PYTHON,
    "--ubatch-size": _IN_PYTHON,
    "--mlock": _IN_PYTHON,
    "--no-mmap": _IN_PYTHON,
    "--lora": "llama-py serve takes it; in Python it is lora_path of Llama",
    "-np": "it is an option of llama-py serve",
    "--parallel": "it is an option of llama-py serve",
    "-lv": "it is --verbose here",
    "--log-verbosity": "it is --verbose here",
    "--log-disable": "leave it out, since llama.cpp's log is printed with --verbose only",
    "--embd-normalize": "it is --raw here for vectors as they are",
    "--format": "it is --json-schema here",
    "--think": "leave it out, since models think by default; --no-think turns that off",
    "--hidethinking": "it is --no-think here, or 2>/dev/null: thoughts are not part of the output",
    "--keepalive": "leave it out, since the model goes when the command ends",
    "--nowordwrap": "leave it out, since lines are not wrapped",
    "--insecure": "leave it out; downloads are always checked",
}

_NO_STORE = "models are loaded by the command that names them, and leave memory when it ends"
#: Commands of Ollama and of llama.cpp.
COMMANDS: Mapping[str, str] = {
    "run": "it is chat here",
    "cli": "it is chat here",
    "completion": "it is generate here",
    "embedding": "it is embed here",
    "server": "it is serve here",
    "start": "it is serve here",
    "info": "it is inspect here",
    "ls": "it is list here",
    "download": "it is pull here",
    "ps": _NO_STORE,
    "stop": _NO_STORE,
    "create": _NO_STORE,
    "version": "it is --version here",
    "benchmark": "it is bench here",
}
