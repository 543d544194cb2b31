# Two cores of an AMD EPYC with AVX-512, GCC 12, the operation alone, one thread, microseconds without / with
# the rule: one token of 9 heads of 64, of which 3 share cells, behind 1,024: 180 / 44; of 32 heads of 128, of
# which 4 share cells, behind 4,096: 11,300 / 2,400; 64 conversations in one buffer of 2,048 cells: 2,000 / 147;
# a token of a prompt of 64 / of 512 behind 1,024: 57, 67 / 27, 33. The squared error of logits behind 700
# tokens is 50 times smaller.
option(LLAMA_PY_ATTENTION_HEADS
    "Compute flash attention for all heads that share cells at once; needs AVX2, and LLAMA_PY_ATTENTION_TILES" ON)

llama_py_header_rule(LLAMA_PY_ATTENTION_HEADS attention_heads.h
    FOR ${gcc_or_clang_for_x86}
    INSTRUCTIONS
        "(defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))"
    SOURCES ggml/src/ggml-cpu/ops.cpp)
