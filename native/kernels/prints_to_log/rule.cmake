# A library prints nothing, and the reasons of llama.cpp's errors belong into exceptions.
option(LLAMA_PY_PRINTS_TO_LOG
    "What llama.cpp prints on standard error goes to its log; off when it does not compile" ON)

if (NOT LLAMA_PY_PRINTS_TO_LOG)
    llama_py_note_rule(LLAMA_PY_PRINTS_TO_LOG "off")
elseif (NOT gcc_or_clang)
    llama_py_note_rule(LLAMA_PY_PRINTS_TO_LOG "without effect")
else()
    llama_py_include_first(prints_to_log.h ggml-base
        ggml/src/ggml-quants.c
        ggml/src/ggml-cpu/ggml-cpu.c
        ggml/src/ggml-cpu/amx/amx.cpp
        ggml/src/ggml-cpu/amx/mmq.cpp)
    llama_py_include_first(prints_to_log.h llama src/llama-grammar.cpp src/unicode.cpp)
    llama_py_include_first(prints_to_log.h llama_py_chat common/json-schema-to-grammar.cpp)
    llama_py_note_rule(LLAMA_PY_PRINTS_TO_LOG "applied")
endif()
