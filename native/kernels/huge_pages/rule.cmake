# Two cores of an Intel Xeon (AVX-512, AMX), GCC 12, 135M parameters in Q8_0, seven pairs of processes of
# llama-bench, huge pages by small ones: replies 1.025 (with flash attention 1.027), prompts of 512 tokens 1.015.
option(LLAMA_PY_HUGE_PAGES
    "Ask Linux for transparent huge pages for weights and graphs in RAM" ON)

llama_py_header_rule(LLAMA_PY_HUGE_PAGES huge_pages.h
    FOR ${gcc_or_clang_on_linux}
    SOURCES ggml/src/ggml.c)
