# Two cores of an AMD EPYC with AVX-512, GCC 12, 135M parameters in Q8_0, heads of 64, flash attention. A turn
# of 12, 16, 20, 24, 32, 48 tokens behind 1,024, tokens per second as ggml chooses: 170, 168, 176, 176, 191,
# 184; with the rule: 164, 170, 216, 249, 280, 360. Replies to 64 conversations of 128 tokens in one buffer: 78 /
# 198 tokens per second; to 8 and 32 of them as before.
option(LLAMA_PY_ATTENTION_TILES
    "Choose tiles of flash attention by what tokens attend to; off when ggml does, or it does not compile" ON)

# What is computed there needs no tiles.
llama_py_rule(attention_heads)
llama_py_header_rule(LLAMA_PY_ATTENTION_TILES attention_tiles.h
    FOR ${gcc_or_clang}
    SOURCES ggml/src/ggml-cpu/ops.cpp)
