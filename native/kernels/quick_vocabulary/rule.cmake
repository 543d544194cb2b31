# Most of the time that llama.cpp takes to open a small model goes into its vocabulary. Each of its tokens (150,000 to
# 260,000) is compared with the texts of some seventy marks, of which nearly all begin with "<" or "[" and nearly no token
# does; the whole vocabulary with its scores is made into text for a line of the log that shows 37 characters of it; and
# the table of merges grows step by step, each merge copied twice on its way. What comes out is the same, with the
# order in which tokens lie: where several of them could be the end of a turn, the first one wins.
# Without weights, before and after: docs/performance.md.
option(LLAMA_PY_QUICK_VOCABULARY
    "Open vocabularies without comparing each token with each mark; off when it does not compile" ON)

function(llama_py_quick_vocabulary)
    if (NOT LLAMA_PY_QUICK_VOCABULARY)
        llama_py_note_rule(LLAMA_PY_QUICK_VOCABULARY "off")
        return()
    endif()
    set(here "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
    set(folder "${LLAMA_PY_SOURCE_DIR}/src")

    llama_py_source_text(text "${folder}" llama-vocab.cpp)
    # "[" means something in CMake's lists, and is as good a beginning as "<".
    string(REPLACE "[" "<" plain "${text}")
    string(REGEX MATCHALL "t\\.first == \"[^\"]*\"" marks "${plain}")
    foreach (mark IN LISTS marks)
        if (NOT mark MATCHES "== \"(<|_<|▁<)")
            message(FATAL_ERROR "LLAMA_PY_QUICK_VOCABULARY: this llama.cpp looks for tokens that marks.h skips (${mark}); "
                "correct marks.h, or turn the rule off (-DLLAMA_PY_QUICK_VOCABULARY=OFF)")
        endif()
    endforeach()
    llama_py_exchange(text LLAMA_PY_QUICK_VOCABULARY
        "#include \"llama-vocab.h\"\n"
        "#include \"llama-vocab.h\"\n#include \"${here}/marks.h\"\n")
    llama_py_exchange(text LLAMA_PY_QUICK_VOCABULARY
        "            auto & attr = id_to_token[t.second].attr;\n\n            // find EOT token:"
        "            if (!llama_py_may_be_a_mark(t.first)) {\n                continue;\n            }\n            auto & attr = id_to_token[t.second].attr;\n\n            // find EOT token:")
    llama_py_exchange(text LLAMA_PY_QUICK_VOCABULARY
        "            auto & attr = id_to_token[t.second].attr;\n\n            if (false\n"
        "            auto & attr = id_to_token[t.second].attr;\n            if ((attr & LLAMA_TOKEN_ATTR_CONTROL) == 0 && !llama_py_may_be_a_mark(t.first)) {\n                continue;\n            }\n\n            if (false\n")
    llama_py_exchange(text LLAMA_PY_QUICK_VOCABULARY
        "            auto & attr = id_to_token[t.second].attr;\n\n            if (t.first == \"<|channel|>\""
        "            if (!llama_py_may_be_a_mark(t.first)) {\n                continue;\n            }\n            auto & attr = id_to_token[t.second].attr;\n\n            if (t.first == \"<|channel|>\"")
    # In two places, for two kinds of tokenizers.
    string(REPLACE
        "                const int n_merges = gguf_get_arr_n(ctx, merges_keyidx);\n"
        "                const int n_merges = gguf_get_arr_n(ctx, merges_keyidx);\n                bpe_ranks.reserve(n_merges);\n"
        text "${text}")
    string(REPLACE
        "bpe_ranks.emplace(std::make_pair(first, second), i);"
        "bpe_ranks.emplace(std::make_pair(std::move(first), std::move(second)), i);"
        text "${text}")
    llama_py_compile_copy(llama "${folder}" llama-vocab.cpp "${text}")

    # The log shows 37 characters of an array, which 64 elements have in any case.
    llama_py_source_text(text "${folder}" llama-impl.cpp)
    llama_py_exchange(text LLAMA_PY_QUICK_VOCABULARY
        "                for (int j = 0; j < arr_n; j++) {\n"
        "                for (int j = 0; j < arr_n; j++) {\n                    if (j == 64) {\n                        ss << \"...\";\n                        break;\n                    }\n")
    llama_py_compile_copy(llama "${folder}" llama-impl.cpp "${text}")
    llama_py_note_rule(LLAMA_PY_QUICK_VOCABULARY "applied")
endfunction()

llama_py_quick_vocabulary()
