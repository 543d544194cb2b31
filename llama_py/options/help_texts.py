"""The options of each call in words, for ``help()``. Generated: ``python -m tools.option_help``."""

from __future__ import annotations

from typing import Final

__all__ = ["HELP_TEXTS"]

#: By the name of the call.
HELP_TEXTS: Final[dict[str, str]] = {
    "Llama": """\
Options:
    n_gpu_layers ("auto"; default: -1): Layers on the GPU; -1 and "auto" are as many as there is
        memory for (devices). Without effect if there is no GPU.
    n_cpu_moe (integer, -1 to 512; default: 0): The experts of this many layers, the first ones,
        stay in the machine's memory (-1: of all), and the rest goes to the GPU: for a mixture
        of experts that is larger than it.
    cpu_moe (boolean or integer): n_cpu_moe by another name: True is all layers, a number so
        many of them.
    split_mode ("none", "layer", "row", "tensor"; default: "layer"): How several GPUs share the
        model.
    main_gpu (integer, 0 to 32768; default: 0): The GPU that is used with split_mode="none".
    tensor_split (list): The proportion for each device, in the order of llama-py devices.
    devices (list): The devices to use, by their names in llama-py devices, first layers on the
        first; an empty list is the CPU alone. By default all GPUs, and what rpc.add_server
        added.
    rpc_servers (list): Servers, as host:port, whose devices are used beside the GPUs of this
        machine (RPC).
    override_tensors (dictionary): Regular expressions for names of tensors, each with the
        device that they go to ({"ffn_.*_exps": "CPU"}); the first one that is found in a name
        counts.
    vocab_only (boolean; default: False): Load the vocabulary and no weights, to tokenize.
    use_mmap (boolean; default: True): Map the file instead of reading it.
    use_mlock (boolean; default: False): Keep the weights from being swapped out.
    repack (boolean; default: True): Arrange quantized weights for the CPU, where it has kernels
        for that: several times as fast, but each process has a copy of its own.
    kv_overrides (dictionary): Values in place of the file's metadata.
    check_tensors (boolean; default: False): Look for NaN and Inf in the weights while they are
        loaded.
    n_ctx (integer, at least 0; default: 0): Tokens in memory, shared by all conversations; 0 is
        the model's own context length, as far as there is memory for it: a quarter of what this
        process may use, or most of what is free on the GPUs.
    n_batch (integer, at least 1; default: 2048): Most tokens in one llama_decode.
    n_ubatch (integer, at least 1; default: 512): Most tokens that are computed at once.
    n_seq_max (integer, 1 to 256; default: 8): Conversations in memory side by side; others are
        offloaded and brought back.
    n_threads (integer, 1 to 512; default: the physical cores of this process, fewer while
        others use them; 1 for a tiny model): Threads for one token at a time.
    n_threads_batch (integer, 1 to 512; default: like n_threads): Threads for many tokens at
        once.
    rope_scaling_type ("unspecified", "none", "linear", "yarn", "longrope"; default:
        "unspecified"): How positions are scaled beyond the trained context.
    pooling_type ("unspecified", "none", "mean", "cls", "last", "rank"; default: "unspecified"):
        How the embeddings of a text become one.
    attention_type ("unspecified", "causal", "non_causal"; default: "unspecified"): Whether a
        token sees those that come after it; nothing is reused if it does.
    rope_freq_base (number, at least 0; default: 0.0): Base frequency of RoPE; 0 is the model's.
    rope_freq_scale (number, at least 0; default: 0.0): Scale of the frequencies of RoPE; 0 is
        the model's.
    yarn_ext_factor (number; default: -1.0): Extrapolation mix of YaRN; below 0 is the model's.
    yarn_attn_factor (number; default: 1.0): Magnitude of attention with YaRN.
    yarn_beta_fast (number; default: 32.0): Low correction dimension of YaRN.
    yarn_beta_slow (number; default: 1.0): High correction dimension of YaRN.
    yarn_orig_ctx (integer, at least 0; default: 0): Trained context for YaRN; 0 is the model's.
    offload_kqv (boolean; default: True): Keep the KV cache on the GPU.
    op_offload (boolean; default: True): Let the GPU compute with weights that are not on it.
    flash_attn (True, False, "auto"; default: "auto"): Flash attention; None and "auto" use it
        where it is supported.
    swa_full (boolean; default: False): A cache of full size for sliding-window layers. Not
        needed for right results.
    kv_unified (boolean; default: True): All conversations share one buffer of n_ctx cells, and
        a beginning that they have in common is there once. False gives each of the n_seq_max
        its own buffer, of n_ctx / n_seq_max cells: faster where several long ones are in
        memory.
    no_perf (boolean; default: True): llama.cpp does not measure times of its own.
    type_k ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"; default:
        "f16"): Type of the keys in the KV cache.
    type_v ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"; default:
        "f16"): Type of the values in the KV cache.
    moe_cache_size (integer, at least 0; default: 0): Bytes on the GPUs for copies of the
        experts that were used last, where n_cpu_moe keeps experts in the machine's memory. An
        error without a GPU, and for a model without experts.
    mmproj (text or path; default: "auto"): The projector for pictures and sounds, an
        mmproj-....gguf. auto is the one in the model's folder, if there is just one that fits;
        None is none.
    image_min_tokens (integer, at least 1): Tokens of a picture, at least, for projectors of
        pictures of any size.
    image_max_tokens (integer, at least 1): The same, at most: larger pictures are made smaller,
        and cost less.
    media_paths (list): Folders below which messages may name files of pictures and sounds; none
        by default.
    allow_urls (boolean; default: False): Fetch pictures and sounds from http and https
        addresses in messages, though never from this machine or its network.
    max_media_bytes (integer, at least 1; default: 33554432): Of one picture or sound, as a
        file.
    max_image_pixels (integer, at least 1; default: 64000000): Of one picture, as its header
        says; larger ones are refused before they are decoded.
    max_sound_seconds (number, 0.1 to 1e+06; default: 3600.0): Of one sound; longer ones are
        refused.
    max_media (integer, at least 0; default: 64): Pictures and sounds in one conversation.
    max_media_decoded (integer, at least 1; default: 1073741824): Bytes of all of them, decoded:
        3 for each pixel, 4 for each sample of a sound.
    media_cache_bytes (integer, at least 0; default: 268435456): What is kept of pictures and
        sounds, so that the same ones are not encoded again.
    seed (integer; default: 4294967295): For calls that give none; 4294967295 and -1 choose one
        for every call.
    last_n_tokens_size (integer, at least -1; default: 64): penalty_last_n of calls that give
        none.
    logits_all (boolean; default: False): eval keeps the logits of every token, in scores.
    lora_path (text or path): A LoRA adapter in a GGUF file.
    lora_scale (number; default: 1.0): How strong the adapter is.
    chat_format (text): The name of a chat format, in place of the model's own template.
    chat_template (text): A Jinja template in place of the model's own, or the name of one of
        llama.cpp's (command-r).
    chat_handler (function): Takes over create_chat_completion altogether.
    special_tokens_in_content ("text", "parse", "refuse"; default: "text"): The texts of special
        tokens in user and tool messages are text, tokens, or an error (prompt injection).
    tool_form ("auto", "template", "hermes"; default: "auto"): How tools are declared and
        called: "template" is the model's own way, "hermes" a general one for models without,
        "auto" the latter where there is no other (more).
    json_calls (boolean; default: True): With tools to choose from: a reply that as a whole is a
        call in plain JSON becomes that call (more).
    overflow (): What to leave out when a conversation is too long (errors).
    tokenizer (): An object whose tokenize() is used in place of the vocabulary's.
    spm_infill (boolean; default: False): Infill prompts begin with the suffix.
    parking_bytes (integer, at least 0; default: 1073741824): RAM for conversations that there
        is no room for in the context.
    checkpoint_bytes (integer, at least 0; default: 536870912): RAM for checkpoints, of sliding-
        window, recurrent and hybrid models.
    prefix_cache_slots (integer, at least 0; default: 4): Named snapshots that are kept, at most
        8.
    max_waiting (integer, at least 1; default: 1024): Requests that may wait for a place.
    in_place (boolean; default: False): Start no thread: calls step the engine themselves
        (WebAssembly, tests). One thread at a time may use the model then.
    isolate (boolean; default: False): Compute in a process of its own, which may die (an abort
        in C, too little memory, a lost device) and is started again (processes).
    numa (boolean or integer; default: False): NUMA strategy: True or 1 distribute, 2 isolate, 3
        numactl, 4 mirror.
    progress (function): Called with the fraction loaded, by the calling thread. Returning False
        or raising stops the loading.
    verbose (boolean; default: False): Print llama.cpp's log on standard error. It always goes
        to the logger llama_py.
    speculative (list or text or boolean): Who drafts the tokens that may come next, to be
        verified together: PromptLookup(), DraftModel(path), MTP(), a function, a list of these,
        "lookup", "draft=FILE", or "mtp" (speculative decoding).
    draft_model (): speculative, by llama-cpp-python's name.
    lora_base (): Not needed: adapters are applied to quantized weights.
    embedding (boolean; default: False): Not needed: embed and rerank work in any case, and what
        they need is made when they are called for the first time (embeddings).""",
    "create_completion": """\
Options:
    temperature (number; default: 0.8): How far the choice departs from the most likely token; 0
        or less always takes that (what it depends on).
    top_k (integer; default: 40): Only the K most likely tokens; 0 or less is all of them.
    top_p (number, 0 to 1; default: 0.95): Only the most likely tokens that make up this
        probability; 1 is all of them.
    min_p (number, 0 to 1; default: 0.05): Only tokens at least P times as likely as the most
        likely one; 0 is all of them.
    typical_p (number, 0 to 1; default: 1.0): Locally typical sampling: the probability to keep;
        1 is off.
    top_n_sigma (number; default: -1.0): Only logits within N standard deviations of the
        largest; 0 or less is off.
    xtc_probability (number, 0 to 1; default: 0.0): How often XTC removes the likeliest tokens
        but one; 0 is off.
    xtc_threshold (number, 0 to 1; default: 0.1): Tokens from this probability on are those that
        XTC may remove.
    dynatemp_range (number, at least 0; default: 0.0): The temperature varies by so much around
        temperature, with the entropy; 0 is off.
    dynatemp_exponent (number, at least 0; default: 1.0): How the entropy becomes a temperature.
    repeat_penalty (number, at least 1e-06; default: 1.0): Divides the logits of tokens that
        occurred, in prompt or reply; 1 means no penalty.
    frequency_penalty (number, -2 to 2; default: 0.0): Taken from a logit for each time that its
        token occurred.
    presence_penalty (number, -2 to 2; default: 0.0): Taken from a logit once if its token
        occurred.
    penalty_last_n (integer, at least -1; default: last_n_tokens_size of the model (64)): How
        many tokens of prompt and reply the three penalties look back; -1 is the whole context,
        0 none.
    dry_multiplier (number, at least 0; default: 0.0): Strength of DRY, which penalises the
        continuation of repeated sequences; 0 is off.
    dry_base (number, at least 0; default: 1.75): How fast the penalty of DRY grows with the
        length of the repetition.
    dry_allowed_length (integer, at least 0; default: 2): Repetitions up to this many tokens are
        not penalised by DRY.
    dry_penalty_last_n (integer, at least -1; default: -1): How many tokens DRY looks back; -1
        is the whole context, 0 none.
    dry_sequence_breakers (text or list; default: ('\\n', ':', '"', '*')): Texts at which a
        repetition ends for DRY, at most 64.
    adaptive_target (number, at most 1; default: -1.0): Adaptive-p: the probability that chosen
        tokens should have on average; below 0: off.
    adaptive_decay (number, 0 to 0.99; default: 0.9): How slowly adaptive-p forgets the tokens
        before.
    mirostat_mode (integer, 0 to 2; default: 0): Mirostat 1 or 2, in place of the steps from
        top-k to min-p; 0 is off.
    mirostat_tau (number, at least 0; default: 5.0): The surprise, in bits, that Mirostat aims
        at.
    mirostat_eta (number, at least 0; default: 0.1): How fast Mirostat adapts.
    seed (integer; default: seed of the model (random)): Of the random numbers; the same seed
        gives the same reply to the same logits (more). 4294967295 and -1 choose one.
    logit_bias (dictionary): Token id → what is added to its logit; float("-inf") or False
        forbids the token.
    logits_processor (function or list): Functions of (tokens, logits) that return the logits to
        use (what they may do).
    samplers (text or list; default: llama.cpp's): The steps to take and their order, by name: a
        list, or a text with semicolons ("top_k;top_p;temperature"), at most 64.
    min_tokens (integer, at least 0; default: 0): The reply does not end before it has this many
        tokens.
    min_keep (integer, at least 0; default: 1): Each step that leaves out unlikely tokens keeps
        at least this many.
    tfs_z (number): Without effect: llama.cpp has no tail-free sampling any more. Use min_p.
    grammar (text): A LlamaGrammar, or GBNF rules as text, that the reply has to follow
        (structured output).
    stopping_criteria (function or list): Functions of (tokens, logits), called after every
        token; True ends the reply.
    max_tokens (integer; default: 16): Most tokens to generate. None, 0 and less are as many as
        the context has room for; with echo, and in the server, 0 is none.
    stop (text or list): Texts that end the reply, and are not part of it; the earliest one
        counts.
    stop_token_ids (list): Tokens that end the reply, beside the vocabulary's own.
    ignore_eos (boolean; default: False): Go on past the tokens that end a reply.
    timeout (number, at least 0): Seconds for the whole call; GenerationTimeout carries what
        there is by then.
    priority (integer; default: 0): Smaller goes first when requests wait.
    speculative (list or text or boolean; default: that of the model): Drafters for speculative
        decoding; False disables it (speculative decoding).
    reuse (boolean; default: True): False: nothing that is in memory is taken for this call, so
        that its whole prompt is evaluated (why); other conversations stay there, unless its
        reply needs their room.
    on_progress (function): Called with (tokens done, tokens) while the prompt is evaluated;
        first with those that are reused.
    model (text; default: the path of the model): The name that the response gives.
    n (integer, 1 to 128; default: 1): Replies to generate, side by side.
    session_id (text): Names the conversation in cache_info and memory_report().
    user (text): Used as session_id if there is none.
    stream_options (dictionary): With stream=True: {"include_usage": True} adds a last chunk
        with the usage.
    echo (boolean; default: False): The text begins with the prompt.
    suffix (text): Fill in the middle: what comes after the text. Needs a model with infill
        tokens.
    logprobs (integer, at least 0): Report log-probabilities, and this many alternatives for
        each token.
    best_of (integer, 1 to 128; default: n): Number of replies to generate; the n most likely
        are returned.""",
    "create_chat_completion": """\
Options:
    temperature (number; default: 0.2): How far the choice departs from the most likely token; 0
        or less always takes that (what it depends on).
    top_k (integer; default: 40): Only the K most likely tokens; 0 or less is all of them.
    top_p (number, 0 to 1; default: 0.95): Only the most likely tokens that make up this
        probability; 1 is all of them.
    min_p (number, 0 to 1; default: 0.05): Only tokens at least P times as likely as the most
        likely one; 0 is all of them.
    typical_p (number, 0 to 1; default: 1.0): Locally typical sampling: the probability to keep;
        1 is off.
    top_n_sigma (number; default: -1.0): Only logits within N standard deviations of the
        largest; 0 or less is off.
    xtc_probability (number, 0 to 1; default: 0.0): How often XTC removes the likeliest tokens
        but one; 0 is off.
    xtc_threshold (number, 0 to 1; default: 0.1): Tokens from this probability on are those that
        XTC may remove.
    dynatemp_range (number, at least 0; default: 0.0): The temperature varies by so much around
        temperature, with the entropy; 0 is off.
    dynatemp_exponent (number, at least 0; default: 1.0): How the entropy becomes a temperature.
    repeat_penalty (number, at least 1e-06; default: 1.0): Divides the logits of tokens that
        occurred, in prompt or reply; 1 means no penalty.
    frequency_penalty (number, -2 to 2; default: 0.0): Taken from a logit for each time that its
        token occurred.
    presence_penalty (number, -2 to 2; default: 0.0): Taken from a logit once if its token
        occurred.
    penalty_last_n (integer, at least -1; default: last_n_tokens_size of the model (64)): How
        many tokens of prompt and reply the three penalties look back; -1 is the whole context,
        0 none.
    dry_multiplier (number, at least 0; default: 0.0): Strength of DRY, which penalises the
        continuation of repeated sequences; 0 is off.
    dry_base (number, at least 0; default: 1.75): How fast the penalty of DRY grows with the
        length of the repetition.
    dry_allowed_length (integer, at least 0; default: 2): Repetitions up to this many tokens are
        not penalised by DRY.
    dry_penalty_last_n (integer, at least -1; default: -1): How many tokens DRY looks back; -1
        is the whole context, 0 none.
    dry_sequence_breakers (text or list; default: ('\\n', ':', '"', '*')): Texts at which a
        repetition ends for DRY, at most 64.
    adaptive_target (number, at most 1; default: -1.0): Adaptive-p: the probability that chosen
        tokens should have on average; below 0: off.
    adaptive_decay (number, 0 to 0.99; default: 0.9): How slowly adaptive-p forgets the tokens
        before.
    mirostat_mode (integer, 0 to 2; default: 0): Mirostat 1 or 2, in place of the steps from
        top-k to min-p; 0 is off.
    mirostat_tau (number, at least 0; default: 5.0): The surprise, in bits, that Mirostat aims
        at.
    mirostat_eta (number, at least 0; default: 0.1): How fast Mirostat adapts.
    seed (integer; default: seed of the model (random)): Of the random numbers; the same seed
        gives the same reply to the same logits (more). 4294967295 and -1 choose one.
    logit_bias (dictionary): Token id → what is added to its logit; float("-inf") or False
        forbids the token.
    logits_processor (function or list): Functions of (tokens, logits) that return the logits to
        use (what they may do).
    samplers (text or list; default: llama.cpp's): The steps to take and their order, by name: a
        list, or a text with semicolons ("top_k;top_p;temperature"), at most 64.
    min_tokens (integer, at least 0; default: 0): The reply does not end before it has this many
        tokens.
    min_keep (integer, at least 0; default: 1): Each step that leaves out unlikely tokens keeps
        at least this many.
    tfs_z (number): Without effect: llama.cpp has no tail-free sampling any more. Use min_p.
    grammar (text): A LlamaGrammar, or GBNF rules as text, that the reply has to follow
        (structured output).
    stopping_criteria (function or list): Functions of (tokens, logits), called after every
        token; True ends the reply.
    max_tokens (integer): Most tokens to generate. None, 0 and less are as many as the context
        has room for; with echo, and in the server, 0 is none.
    stop (text or list): Texts that end the reply, and are not part of it; the earliest one
        counts.
    stop_token_ids (list): Tokens that end the reply, beside the vocabulary's own.
    ignore_eos (boolean; default: False): Go on past the tokens that end a reply.
    timeout (number, at least 0): Seconds for the whole call; GenerationTimeout carries what
        there is by then.
    priority (integer; default: 0): Smaller goes first when requests wait.
    speculative (list or text or boolean; default: that of the model): Drafters for speculative
        decoding; False disables it (speculative decoding).
    reuse (boolean; default: True): False: nothing that is in memory is taken for this call, so
        that its whole prompt is evaluated (why); other conversations stay there, unless its
        reply needs their room.
    on_progress (function): Called with (tokens done, tokens) while the prompt is evaluated;
        first with those that are reused.
    model (text; default: the path of the model): The name that the response gives.
    tools (list): Functions that the model may call, in OpenAI's form (tools).
    tool_choice ("auto", "none", "required"; default: "auto"): "auto", "none", "required",
        {"type": "function", "function": {"name": …}}, or {"type": "allowed_tools",
        "allowed_tools": {"mode": …, "tools": […]}}: only those may be called, and the prompt
        stays as it is with all of them.
    parallel_tool_calls (boolean; default: what the template supports): Whether a reply may have
        several calls; a named tool is called once, unless this is True.
    json_calls (boolean; default: that of the model): A reply that as a whole is a call in plain
        JSON becomes that call (more).
    functions (list): The form of tools before 2024.
    function_call (text or dictionary): The form of tool_choice before 2024.
    response_format (dictionary): A JSON schema that the reply has to follow (structured
        output).
    chat_template_kwargs (dictionary): Further variables for the template.
    enable_thinking (boolean; default: the template's): Whether a reasoning model reasons.
    reasoning_effort ("none", "minimal", "low", "medium", "high", "xhigh", "max"; default: the
        template's): For templates that know it; "none" turns reasoning off.
    reasoning_budget (integer, at least -1): Maximum reasoning tokens; 0 disables reasoning, -1
        means no limit.
    reasoning_format ("auto", "none", "deepseek", "deepseek-legacy"; default: "auto"): "none"
        leaves the reasoning in the content.
    continue_final_message (True, False, "content", "reasoning_content"; default: False): The
        last message is the beginning of the reply, which goes on with it. In the server, a
        message of the assistant at the end is one unless this says False.
    add_generation_prompt (boolean; default: True): The prompt ends with the opening of an
        assistant message.
    special_tokens_in_content ("text", "parse", "refuse"; default: that of the model): The texts
        of special tokens in user and tool messages are text, tokens, or an error (prompt
        injection).
    max_completion_tokens (integer): max_tokens.
    logprobs (boolean; default: False): Report log-probabilities (more).
    top_logprobs (integer, at least 0; default: 0): With logprobs: alternatives to report for
        each token.
    overflow (default: that of the model): What to leave out when the conversation is too long
        (errors).
    n (integer, 1 to 128; default: 1): Replies to generate, side by side.
    session_id (text): Names the conversation in cache_info and memory_report().
    user (text): Used as session_id if there is none.
    stream_options (dictionary): With stream=True: {"include_usage": True} adds a last chunk
        with the usage.""",
    "sample": """\
Options:
    temperature (number; default: 0.8): How far the choice departs from the most likely token; 0
        or less always takes that (what it depends on).
    top_k (integer; default: 40): Only the K most likely tokens; 0 or less is all of them.
    top_p (number, 0 to 1; default: 0.95): Only the most likely tokens that make up this
        probability; 1 is all of them.
    min_p (number, 0 to 1; default: 0.05): Only tokens at least P times as likely as the most
        likely one; 0 is all of them.
    typical_p (number, 0 to 1; default: 1.0): Locally typical sampling: the probability to keep;
        1 is off.
    top_n_sigma (number; default: -1.0): Only logits within N standard deviations of the
        largest; 0 or less is off.
    xtc_probability (number, 0 to 1; default: 0.0): How often XTC removes the likeliest tokens
        but one; 0 is off.
    xtc_threshold (number, 0 to 1; default: 0.1): Tokens from this probability on are those that
        XTC may remove.
    dynatemp_range (number, at least 0; default: 0.0): The temperature varies by so much around
        temperature, with the entropy; 0 is off.
    dynatemp_exponent (number, at least 0; default: 1.0): How the entropy becomes a temperature.
    repeat_penalty (number, at least 1e-06; default: 1.0): Divides the logits of tokens that
        occurred, in prompt or reply; 1 means no penalty.
    frequency_penalty (number, -2 to 2; default: 0.0): Taken from a logit for each time that its
        token occurred.
    presence_penalty (number, -2 to 2; default: 0.0): Taken from a logit once if its token
        occurred.
    penalty_last_n (integer, at least -1; default: last_n_tokens_size of the model (64)): How
        many tokens of prompt and reply the three penalties look back; -1 is the whole context,
        0 none.
    dry_multiplier (number, at least 0; default: 0.0): Strength of DRY, which penalises the
        continuation of repeated sequences; 0 is off.
    dry_base (number, at least 0; default: 1.75): How fast the penalty of DRY grows with the
        length of the repetition.
    dry_allowed_length (integer, at least 0; default: 2): Repetitions up to this many tokens are
        not penalised by DRY.
    dry_penalty_last_n (integer, at least -1; default: -1): How many tokens DRY looks back; -1
        is the whole context, 0 none.
    dry_sequence_breakers (text or list; default: ('\\n', ':', '"', '*')): Texts at which a
        repetition ends for DRY, at most 64.
    adaptive_target (number, at most 1; default: -1.0): Adaptive-p: the probability that chosen
        tokens should have on average; below 0: off.
    adaptive_decay (number, 0 to 0.99; default: 0.9): How slowly adaptive-p forgets the tokens
        before.
    mirostat_mode (integer, 0 to 2; default: 0): Mirostat 1 or 2, in place of the steps from
        top-k to min-p; 0 is off.
    mirostat_tau (number, at least 0; default: 5.0): The surprise, in bits, that Mirostat aims
        at.
    mirostat_eta (number, at least 0; default: 0.1): How fast Mirostat adapts.
    seed (integer; default: seed of the model (random)): Of the random numbers; the same seed
        gives the same reply to the same logits (more). 4294967295 and -1 choose one.
    logit_bias (dictionary): Token id → what is added to its logit; float("-inf") or False
        forbids the token.
    logits_processor (function or list): Functions of (tokens, logits) that return the logits to
        use (what they may do).
    samplers (text or list; default: llama.cpp's): The steps to take and their order, by name: a
        list, or a text with semicolons ("top_k;top_p;temperature"), at most 64.
    min_tokens (integer, at least 0; default: 0): The reply does not end before it has this many
        tokens.
    min_keep (integer, at least 0; default: 1): Each step that leaves out unlikely tokens keeps
        at least this many.
    tfs_z (number): Without effect: llama.cpp has no tail-free sampling any more. Use min_p.
    temp (number): temperature.""",
    "generate": """\
Options:
    temperature (number; default: 0.8): How far the choice departs from the most likely token; 0
        or less always takes that (what it depends on).
    top_k (integer; default: 40): Only the K most likely tokens; 0 or less is all of them.
    top_p (number, 0 to 1; default: 0.95): Only the most likely tokens that make up this
        probability; 1 is all of them.
    min_p (number, 0 to 1; default: 0.05): Only tokens at least P times as likely as the most
        likely one; 0 is all of them.
    typical_p (number, 0 to 1; default: 1.0): Locally typical sampling: the probability to keep;
        1 is off.
    top_n_sigma (number; default: -1.0): Only logits within N standard deviations of the
        largest; 0 or less is off.
    xtc_probability (number, 0 to 1; default: 0.0): How often XTC removes the likeliest tokens
        but one; 0 is off.
    xtc_threshold (number, 0 to 1; default: 0.1): Tokens from this probability on are those that
        XTC may remove.
    dynatemp_range (number, at least 0; default: 0.0): The temperature varies by so much around
        temperature, with the entropy; 0 is off.
    dynatemp_exponent (number, at least 0; default: 1.0): How the entropy becomes a temperature.
    repeat_penalty (number, at least 1e-06; default: 1.0): Divides the logits of tokens that
        occurred, in prompt or reply; 1 means no penalty.
    frequency_penalty (number, -2 to 2; default: 0.0): Taken from a logit for each time that its
        token occurred.
    presence_penalty (number, -2 to 2; default: 0.0): Taken from a logit once if its token
        occurred.
    penalty_last_n (integer, at least -1; default: last_n_tokens_size of the model (64)): How
        many tokens of prompt and reply the three penalties look back; -1 is the whole context,
        0 none.
    dry_multiplier (number, at least 0; default: 0.0): Strength of DRY, which penalises the
        continuation of repeated sequences; 0 is off.
    dry_base (number, at least 0; default: 1.75): How fast the penalty of DRY grows with the
        length of the repetition.
    dry_allowed_length (integer, at least 0; default: 2): Repetitions up to this many tokens are
        not penalised by DRY.
    dry_penalty_last_n (integer, at least -1; default: -1): How many tokens DRY looks back; -1
        is the whole context, 0 none.
    dry_sequence_breakers (text or list; default: ('\\n', ':', '"', '*')): Texts at which a
        repetition ends for DRY, at most 64.
    adaptive_target (number, at most 1; default: -1.0): Adaptive-p: the probability that chosen
        tokens should have on average; below 0: off.
    adaptive_decay (number, 0 to 0.99; default: 0.9): How slowly adaptive-p forgets the tokens
        before.
    mirostat_mode (integer, 0 to 2; default: 0): Mirostat 1 or 2, in place of the steps from
        top-k to min-p; 0 is off.
    mirostat_tau (number, at least 0; default: 5.0): The surprise, in bits, that Mirostat aims
        at.
    mirostat_eta (number, at least 0; default: 0.1): How fast Mirostat adapts.
    seed (integer; default: seed of the model (random)): Of the random numbers; the same seed
        gives the same reply to the same logits (more). 4294967295 and -1 choose one.
    logit_bias (dictionary): Token id → what is added to its logit; float("-inf") or False
        forbids the token.
    logits_processor (function or list): Functions of (tokens, logits) that return the logits to
        use (what they may do).
    samplers (text or list; default: llama.cpp's): The steps to take and their order, by name: a
        list, or a text with semicolons ("top_k;top_p;temperature"), at most 64.
    min_tokens (integer, at least 0; default: 0): The reply does not end before it has this many
        tokens.
    min_keep (integer, at least 0; default: 1): Each step that leaves out unlikely tokens keeps
        at least this many.
    tfs_z (number): Without effect: llama.cpp has no tail-free sampling any more. Use min_p.
    temp (number): temperature.
    grammar (text): A LlamaGrammar, or GBNF rules as text, that the reply has to follow
        (structured output).
    stopping_criteria (function or list): Functions of (tokens, logits), called after every
        token; True ends the reply.""",
}
