"""The options of ``Llama``: how a model and its context are made."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from llama_py.options.drafters import (
    MTP,
    Drafter,
    DraftModel,
    Speculative,
    read_speculative,
)
from llama_py.options.marks import (
    Default,
    Doc,
    Flag,
    NoneCounts,
    Numbered,
    Range,
    Reads,
    WithoutDefault,
)
from llama_py.options.values import (
    CACHE_TYPE_NUMBERS,
    RANDOM_SEED,
    TEXTS,
    CacheType,
    ChatPolicy,
    SpecialTokens,
    ToolForm,
    read_adapter_path,
    read_cpu_moe,
    read_devices,
    read_flash,
    read_folders,
    read_layers,
    read_numa,
    read_overrides,
    read_placed,
    read_policy,
    read_projector_path,
    read_shares,
    read_tokenizer,
    unavailable,
)

__all__ = ["ContextOptions", "LoadOptions", "MediaOptions", "ModelOptions"]

_LARGEST = 2**31 - 1
#: As many as llama.cpp has room for.
_MOST_LAYERS = 512


class ModelOptions(TypedDict, total=False):
    """How a model file is loaded (``llama_model_params``)."""

    n_gpu_layers: Annotated[
        int | Literal["auto"],
        Reads(read_layers),
        Range(-1, _LARGEST),
        Default(-1),
        Flag("-ngl", "--n-gpu-layers", metavar="N", help="layers on the GPU (default: what fits)"),
        Doc(
            'Layers on the GPU; -1 and `"auto"` are as many as there is memory for ([devices]('
            "devices.md#what-does-not-fit)). Without effect if there is no GPU."
        ),
    ]
    n_cpu_moe: Annotated[
        int,
        Range(-1, _MOST_LAYERS),
        Default(0),
        Flag(
            "-ncmoe",
            "--n-cpu-moe",
            metavar="N",
            help="keep the experts of the first N layers off the GPU (-1: of all)",
        ),
        Doc(
            "The experts of this many layers, the first ones, stay in the machine's memory (-1: of "
            "all), and the rest goes to the GPU: for a mixture of experts that is larger than it."
        ),
    ]
    cpu_moe: Annotated[
        bool | int | None,
        Reads(read_cpu_moe),
        Flag("-cmoe", "--cpu-moe", metavar="on|N", help="same as --n-cpu-moe; on means all layers"),
        Doc("`n_cpu_moe` by another name: True is all layers, a number so many of them."),
    ]
    split_mode: Annotated[
        int | Literal["none", "layer", "row", "tensor"],
        Numbered(0, 1, 2, 3),
        Default(1),
        Flag("--split-mode", metavar="MODE"),
        Doc("How several GPUs share the model."),
    ]
    main_gpu: Annotated[
        int,
        Range(0, 2**15),
        Default(0),
        Doc('The GPU that is used with `split_mode="none"`.'),
    ]
    tensor_split: Annotated[
        Sequence[float] | None,
        Reads(read_shares),
        Flag("--tensor-split", "-ts", metavar="N,N", help="the proportion for each GPU"),
        Doc("The proportion for each device, in the order of `llama-py devices`."),
    ]
    devices: Annotated[
        Sequence[str] | None,
        Reads(read_devices, TEXTS),
        Flag("--device", "-dev", metavar="NAMES", help="devices to use (CUDA0,RPC0), or none"),
        Doc(
            "The devices to use, by their names in `llama-py devices`, first layers on the first; "
            "an empty list is the CPU alone. By default all GPUs, and what `rpc.add_server` added."
        ),
    ]
    rpc_servers: Annotated[
        Sequence[str] | None,
        Reads(read_devices, TEXTS),
        Flag("--rpc", metavar="SERVERS", help="devices of other machines: HOST:PORT,HOST:PORT"),
        Doc(
            "Servers, as `host:port`, whose devices are used beside the GPUs of this machine "
            "([RPC](rpc.md))."
        ),
    ]
    override_tensors: Annotated[
        Mapping[str, str] | None,
        Reads(read_placed, {"type": "object", "additionalProperties": {"type": "string"}}),
        Flag(
            "-ot",
            "--override-tensor",
            metavar="REGEX=DEVICE",
            help="tensors that go to another device than their layer, comma-separated",
        ),
        Doc(
            "Regular expressions for names of tensors, each with the device that they go to "
            '(`{"ffn_.*_exps": "CPU"}`); the first one that is found in a name counts.'
        ),
    ]
    vocab_only: Annotated[
        bool, Default(False), Doc("Load the vocabulary and no weights, to tokenize.")
    ]
    use_mmap: Annotated[bool, Default(True), Doc("Map the file instead of reading it.")]
    use_mlock: Annotated[bool, Default(False), Doc("Keep the weights from being swapped out.")]
    repack: Annotated[
        bool,
        Default(True),
        Doc(
            "Arrange quantized weights for the CPU, where it has kernels for that: several times "
            "as fast, but each process has a copy of its own."
        ),
    ]
    kv_overrides: Annotated[
        Mapping[str, bool | int | float | str] | None,
        Reads(read_overrides),
        Doc("Values in place of the file's metadata."),
    ]
    check_tensors: Annotated[
        bool, Default(False), Doc("Look for NaN and Inf in the weights while they are loaded.")
    ]


class ContextOptions(TypedDict, total=False):
    """How a context is made (``llama_context_params``)."""

    n_ctx: Annotated[
        int,
        Range(0, _LARGEST),
        Default(0),
        Flag(
            "-c",
            "--ctx-size",
            "--n-ctx",
            metavar="N",
            help="tokens of context (default: the model's own)",
        ),
        Doc(
            "Tokens in memory, shared by all conversations; 0 is the model's own context length, "
            "as far as there is memory for it: a quarter of what this process may use, or most of "
            "what is free on the GPUs."
        ),
    ]
    n_batch: Annotated[
        int, Range(1, _LARGEST), Default(2048), Doc("Most tokens in one `llama_decode`.")
    ]
    n_ubatch: Annotated[
        int, Range(1, _LARGEST), Default(512), Doc("Most tokens that are computed at once.")
    ]
    n_seq_max: Annotated[
        int,
        Range(1, 256),
        Default(8),
        Doc("Conversations in memory side by side; others are offloaded and brought back."),
    ]
    n_threads: Annotated[
        int | None,
        Range(1, 512),
        WithoutDefault(
            "the physical cores of this process, fewer while others use them; 1 for a tiny model"
        ),
        Flag("-t", "--threads", metavar="N", help="threads (default: cores)"),
        Doc("Threads for one token at a time."),
    ]
    n_threads_batch: Annotated[
        int | None,
        Range(1, 512),
        WithoutDefault("like `n_threads`"),
        Doc("Threads for many tokens at once."),
    ]
    rope_scaling_type: Annotated[
        int | Literal["unspecified", "none", "linear", "yarn", "longrope"],
        Numbered(-1, 0, 1, 2, 3),
        Default(-1),
        Doc("How positions are scaled beyond the trained context."),
    ]
    pooling_type: Annotated[
        int | Literal["unspecified", "none", "mean", "cls", "last", "rank"],
        Numbered(-1, 0, 1, 2, 3, 4),
        Default(-1),
        Doc("How the embeddings of a text become one."),
    ]
    attention_type: Annotated[
        int | Literal["unspecified", "causal", "non_causal"],
        Numbered(-1, 0, 1),
        Default(-1),
        Doc("Whether a token sees those that come after it; nothing is reused if it does."),
    ]
    rope_freq_base: Annotated[
        float, Range(0.0), Default(0.0), Doc("Base frequency of RoPE; 0 is the model's.")
    ]
    rope_freq_scale: Annotated[
        float, Range(0.0), Default(0.0), Doc("Scale of the frequencies of RoPE; 0 is the model's.")
    ]
    yarn_ext_factor: Annotated[
        float, Default(-1.0), Doc("Extrapolation mix of YaRN; below 0 is the model's.")
    ]
    yarn_attn_factor: Annotated[float, Default(1.0), Doc("Magnitude of attention with YaRN.")]
    yarn_beta_fast: Annotated[float, Default(32.0), Doc("Low correction dimension of YaRN.")]
    yarn_beta_slow: Annotated[float, Default(1.0), Doc("High correction dimension of YaRN.")]
    yarn_orig_ctx: Annotated[
        int, Range(0, _LARGEST), Default(0), Doc("Trained context for YaRN; 0 is the model's.")
    ]
    offload_kqv: Annotated[bool, Default(True), Doc("Keep the KV cache on the GPU.")]
    op_offload: Annotated[
        bool | None, Default(True), Doc("Let the GPU compute with weights that are not on it.")
    ]
    flash_attn: Annotated[
        bool | Literal["auto"] | None,
        Reads(read_flash),
        WithoutDefault('`"auto"`'),
        Flag("-fa", "--flash-attn", metavar="on|off|auto", help="flash attention (default: auto)"),
        Doc('Flash attention; None and `"auto"` use it where it is supported.'),
    ]
    swa_full: Annotated[
        bool | None,
        Default(False),
        Doc("A cache of full size for sliding-window layers. Not needed for right results."),
    ]
    kv_unified: Annotated[
        bool,
        Default(True),
        Flag("--kv-unified", metavar="on|off", help="one KV buffer for all conversations"),
        Doc(
            "All conversations share one buffer of `n_ctx` cells, and a beginning that they have "
            "in common is there once. False gives each of the `n_seq_max` its own buffer, of "
            "`n_ctx / n_seq_max` cells: faster where several long ones are in memory."
        ),
    ]
    no_perf: Annotated[bool, Default(True), Doc("llama.cpp does not measure times of its own.")]
    type_k: Annotated[
        int | CacheType | None,
        Numbered(*CACHE_TYPE_NUMBERS),
        WithoutDefault('`"f16"`'),
        Flag("-ctk", "--cache-type-k", "--type-k", metavar="TYPE"),
        Doc("Type of the keys in the KV cache."),
    ]
    type_v: Annotated[
        int | CacheType | None,
        Numbered(*CACHE_TYPE_NUMBERS),
        WithoutDefault('`"f16"`'),
        Flag("-ctv", "--cache-type-v", "--type-v", metavar="TYPE"),
        Doc("Type of the values in the KV cache."),
    ]
    moe_cache_size: Annotated[
        int,
        Range(0, 2**62),
        Default(0),
        Flag(
            "--moe-cache-size",
            metavar="BYTES",
            help="memory of the GPU for experts that were used last (default: none)",
        ),
        Doc(
            "Bytes on the GPUs for copies of the experts that were used last, where `n_cpu_moe` "
            "keeps experts in the machine's memory. An error without a GPU, and for a model "
            "without experts."
        ),
    ]


class MediaOptions(TypedDict, total=False):
    """Pictures and sounds: what encodes them, and what may be read."""

    mmproj: Annotated[
        str | os.PathLike[str] | None,
        Default("auto"),
        NoneCounts(),
        Reads(read_projector_path),
        Flag("--mmproj", metavar="FILE", help="the projector for pictures and sounds"),
        Doc(
            "The projector for pictures and sounds, an `mmproj-....gguf`. `auto` is the one in the "
            "model's folder, if there is just one that fits; None is none."
        ),
    ]
    image_min_tokens: Annotated[
        int | None,
        Range(1, _LARGEST),
        Flag("--image-min-tokens", metavar="N", help="least tokens of a picture"),
        Doc("Tokens of a picture, at least, for projectors of pictures of any size."),
    ]
    image_max_tokens: Annotated[
        int | None,
        Range(1, _LARGEST),
        Flag("--image-max-tokens", metavar="N", help="most tokens of a picture"),
        Doc("The same, at most: larger pictures are made smaller, and cost less."),
    ]
    media_paths: Annotated[
        Sequence[str | os.PathLike[str]] | None,
        Reads(read_folders),
        Doc("Folders below which messages may name files of pictures and sounds; none by default."),
    ]
    allow_urls: Annotated[
        bool,
        Default(False),
        Doc(
            "Fetch pictures and sounds from `http` and `https` addresses in messages, though never "
            "from this machine or its network."
        ),
    ]
    max_media_bytes: Annotated[
        int, Range(1, 2**40), Default(32 << 20), Doc("Of one picture or sound, as a file.")
    ]
    max_image_pixels: Annotated[
        int,
        Range(1, 2**40),
        Default(64_000_000),
        Doc("Of one picture, as its header says; larger ones are refused before they are decoded."),
    ]
    max_sound_seconds: Annotated[
        float, Range(0.1, 10**6), Default(3600.0), Doc("Of one sound; longer ones are refused.")
    ]
    max_media: Annotated[
        int, Range(0, _LARGEST), Default(64), Doc("Pictures and sounds in one conversation.")
    ]
    max_media_decoded: Annotated[
        int,
        Range(1, 2**40),
        Default(1 << 30),
        Doc("Bytes of all of them, decoded: 3 for each pixel, 4 for each sample of a sound."),
    ]
    media_cache_bytes: Annotated[
        int,
        Range(0, 2**40),
        Default(256 << 20),
        Doc("What is kept of pictures and sounds, so that the same ones are not encoded again."),
    ]


class LoadOptions(ModelOptions, ContextOptions, MediaOptions, total=False):
    """Options of ``Llama``, beside ``model_path``."""

    seed: Annotated[
        int,
        Range(-(2**31), 2**64 - 1),
        Default(RANDOM_SEED),
        Doc("For calls that give none; 4294967295 and -1 choose one for every call."),
    ]
    last_n_tokens_size: Annotated[
        int, Range(-1, _LARGEST), Default(64), Doc("`penalty_last_n` of calls that give none.")
    ]
    logits_all: Annotated[
        bool, Default(False), Doc("`eval` keeps the logits of every token, in `scores`.")
    ]
    lora_path: Annotated[
        str | os.PathLike[str] | None,
        Reads(read_adapter_path),
        Doc("A LoRA adapter in a GGUF file."),
    ]
    lora_scale: Annotated[float, Default(1.0), Doc("How strong the adapter is.")]
    chat_format: Annotated[
        str | None, Doc("The name of a chat format, in place of the model's own template.")
    ]
    chat_template: Annotated[
        str | None,
        Flag("--chat-template", metavar="FILE|NAME"),
        Doc(
            "A Jinja template in place of the model's own, or the name of one of llama.cpp's "
            "(`command-r`)."
        ),
    ]
    chat_handler: Annotated[
        Callable[..., Any] | None,
        Doc("Takes over `create_chat_completion` altogether."),
    ]
    special_tokens_in_content: Annotated[
        SpecialTokens,
        Default("text"),
        Doc(
            "The texts of special tokens in user and tool messages are text, tokens, or an error "
            "([prompt injection](prompt-injection.md))."
        ),
    ]
    tool_form: Annotated[
        ToolForm,
        Default("auto"),
        Flag("--tool-form", metavar="FORM", help="auto, template or hermes: how tools are called"),
        Doc(
            'How tools are declared and called: `"template"` is the model\'s own way, `"hermes"` a '
            'general one for models without, `"auto"` the latter where there is no other '
            "([more](chat.md#models-without-a-form-for-tools))."
        ),
    ]
    json_calls: Annotated[
        bool,
        Default(True),
        Flag("--json-calls", metavar="on|off", help="calls in plain JSON count (default: on)"),
        Doc(
            "With tools to choose from: a reply that as a whole is a call in plain JSON becomes "
            "that call ([more](chat.md#calls-in-plain-json))."
        ),
    ]
    overflow: Annotated[
        ChatPolicy | None,
        Reads(read_policy),
        Doc("What to leave out when a conversation is too long ([errors](errors.md))."),
    ]
    tokenizer: Annotated[
        Any,
        Reads(read_tokenizer),
        Doc("An object whose `tokenize()` is used in place of the vocabulary's."),
    ]
    spm_infill: Annotated[bool, Default(False), Doc("Infill prompts begin with the suffix.")]
    parking_bytes: Annotated[
        int,
        Range(0),
        Default(1 << 30),
        Doc("RAM for conversations that there is no room for in the context."),
    ]
    checkpoint_bytes: Annotated[
        int,
        Range(0),
        Default(512 << 20),
        Doc("RAM for checkpoints, of sliding-window, recurrent and hybrid models."),
    ]
    prefix_cache_slots: Annotated[
        int, Range(0), Default(4), Doc("Named snapshots that are kept, at most 8.")
    ]
    max_waiting: Annotated[int, Range(1), Default(1024), Doc("Requests that may wait for a place.")]
    in_place: Annotated[
        bool,
        Default(False),
        Doc(
            "Start no thread: calls step the engine themselves (WebAssembly, tests). One thread "
            "at a time may use the model then."
        ),
    ]
    isolate: Annotated[
        bool,
        Default(False),
        Flag(
            "--isolate",
            help="give the model a process of its own, which is started again when it dies",
        ),
        Doc(
            "Compute in a process of its own, which may die (an abort in C, too little memory, a "
            "lost device) and is started again ([processes](processes.md#isolation))."
        ),
    ]
    numa: Annotated[
        bool | int,
        Reads(read_numa),
        Default(False),
        Doc("NUMA strategy: True or 1 distribute, 2 isolate, 3 numactl, 4 mirror."),
    ]
    progress: Annotated[
        Callable[[float], bool | None] | None,
        Doc(
            "Called with the fraction loaded, by the calling thread. Returning False or raising "
            "stops the loading."
        ),
    ]
    verbose: Annotated[
        bool,
        Default(False),
        Flag("-v", "--verbose", help="print llama.cpp's log"),
        Doc("Print llama.cpp's log on standard error. It always goes to the logger `llama_py`."),
    ]
    speculative: Annotated[
        Speculative
        | DraftModel
        | MTP
        | Drafter
        | Sequence[DraftModel | MTP | Drafter]
        | str
        | bool
        | None,
        Reads(read_speculative, {"type": "string"}),
        Flag(
            "--speculative",
            metavar="HOW",
            help="lookup, draft=FILE (a small model), mtp (the model's own heads) or off: draft "
            "what may come next",
        ),
        Doc(
            "Who drafts the tokens that may come next, to be verified together: "
            "`PromptLookup()`, `DraftModel(path)`, `MTP()`, a function, a list of these, "
            '`"lookup"`, `"draft=FILE"`, or `"mtp"` ([speculative decoding](speculative.md)).'
        ),
    ]
    draft_model: Annotated[
        Drafter | None,
        Reads(read_speculative),
        Doc("`speculative`, by llama-cpp-python's name."),
    ]
    lora_base: Annotated[
        None,
        Reads(
            unavailable("llama.cpp applies adapters to quantized weights directly; leave it out")
        ),
        Doc("Not needed: adapters are applied to quantized weights."),
    ]
    embedding: Annotated[
        bool,
        Default(False),
        Doc(
            "Not needed: `embed` and `rerank` work in any case, and what they need is made when "
            "they are called for the first time ([embeddings](embeddings.md))."
        ),
    ]
