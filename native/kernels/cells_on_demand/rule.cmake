# A context's cells are cleared when it is made, so all of them are in memory from then on, whatever is used. Two cores of
# an AMD EPYC, loading SmolLM2-135M with 32,768 cells: 2.56 s and 892 MB before, 0.18 s and 155 MB with the rule;
# Qwen2.5-Coder-1.5B: 3.5 s and 1,991 MB, 1.24 s and 1,074 MB. How quick replies are at depth: docs/performance.md.
option(LLAMA_PY_CELLS_ON_DEMAND
    "Take memory for cells when they are first written; off when it does not compile" ON)

llama_py_header_rule(LLAMA_PY_CELLS_ON_DEMAND cells_on_demand.h
    FOR ${gcc_or_clang_on_linux}
    SOURCES ggml/src/ggml-backend.cpp)
