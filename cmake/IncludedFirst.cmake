# Corrections of single files of llama.cpp, whose source is not ours to change: headers that the
# compiler includes before anything else. Each can be turned off, for another llama.cpp or compiler.
option(LLAMA_PY_AMX_TILE_CONFIG
    "Correct GCC's _tile_loadconfig in ggml's AMX code; off when GCC or llama.cpp does it" ON)
option(LLAMA_PY_TENSOR_ALIGNMENT
    "Align tensors in the CPU's buffers to cache lines; off when ggml does, or it does not compile" ON)
option(LLAMA_PY_HUGE_PAGES
    "Ask Linux for transparent huge pages for weights, cells and graphs in RAM" ON)
option(LLAMA_PY_PRINTS_TO_LOG
    "What llama.cpp prints on standard error goes to its log; off when it does not compile" ON)

# Call it with the target whose directory the files belong to. The CPU backend and all variants of it
# are targets of one directory: a file is changed in each of them.
function(llama_py_include_first header target)
    foreach (source IN LISTS ARGN)
        if (EXISTS "${LLAMA_PY_SOURCE_DIR}/${source}")
            set_property(SOURCE "${LLAMA_PY_SOURCE_DIR}/${source}" TARGET_DIRECTORY ${target}
                APPEND PROPERTY COMPILE_OPTIONS
                -include "${CMAKE_CURRENT_SOURCE_DIR}/cmake/${header}")
        endif()
    endforeach()
endfunction()

# Clang's _tile_loadconfig is an intrinsic that may read any memory, and needs no correction.
if (NOT LLAMA_PY_AMX_TILE_CONFIG)
    llama_py_note_rule(LLAMA_PY_AMX_TILE_CONFIG "off")
elseif (CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    llama_py_include_first(amx_tile_config.h ggml-base ggml/src/ggml-cpu/amx/mmq.cpp)
    llama_py_note_rule(LLAMA_PY_AMX_TILE_CONFIG "applied")
else()
    llama_py_note_rule(LLAMA_PY_AMX_TILE_CONFIG "without effect")
endif()

# Two cores of an Intel Xeon (AVX-512, AMX), GCC 12, 135M parameters in Q8_0, heads of 64, milliseconds for
# a prompt of 500 tokens, tensors at multiples of 32 / 64 bytes: flash attention 320 to 460, depending on
# n_ubatch and n_seq_max / 360; without it 480 to 640 / 515.
if (NOT LLAMA_PY_TENSOR_ALIGNMENT)
    llama_py_note_rule(LLAMA_PY_TENSOR_ALIGNMENT "off")
elseif (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
    llama_py_include_first(tensor_alignment.h ggml-base
        ggml/src/ggml-backend.cpp
        ggml/src/ggml-cpu/amx/amx.cpp
        ggml/src/ggml-cpu/repack.cpp)
    llama_py_note_rule(LLAMA_PY_TENSOR_ALIGNMENT "applied")
else()
    llama_py_note_rule(LLAMA_PY_TENSOR_ALIGNMENT "without effect")
endif()

# The same machine and model, seven pairs of processes of llama-bench, huge pages by small ones: replies
# 1.025 (with flash attention 1.027), prompts of 512 tokens 1.015.
if (NOT LLAMA_PY_HUGE_PAGES)
    llama_py_note_rule(LLAMA_PY_HUGE_PAGES "off")
elseif (CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
    llama_py_include_first(huge_pages.h ggml-base ggml/src/ggml.c)
    llama_py_note_rule(LLAMA_PY_HUGE_PAGES "applied")
else()
    llama_py_note_rule(LLAMA_PY_HUGE_PAGES "without effect")
endif()

if (LLAMA_PY_PRINTS_TO_LOG AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
    llama_py_include_first(prints_to_log.h ggml-base
        ggml/src/ggml-quants.c
        ggml/src/ggml-cpu/ggml-cpu.c
        ggml/src/ggml-cpu/amx/amx.cpp
        ggml/src/ggml-cpu/amx/mmq.cpp)
    llama_py_include_first(prints_to_log.h llama src/llama-grammar.cpp src/unicode.cpp)
    llama_py_include_first(prints_to_log.h llama_py_chat common/json-schema-to-grammar.cpp)
endif()
