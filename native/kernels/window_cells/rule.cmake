# Before a batch is computed, llama.cpp places all of its micro-batches on trial and takes that back
# (llama_kv_cache::prepare). What it does not take back: cells of a sliding window that were removed because
# newer ones of the same sequence were overwritten. The first micro-batches are then computed without cells that
# they attend to, and so are wrong. A trial needs to remove nothing.
option(LLAMA_PY_WINDOW_CELLS
    "Keep the cells of a sliding window while several micro-batches are computed; off when llama.cpp does" ON)

# A test sets the flag that the library exports: whether trials remove cells, as without the rule.
set(llama_py_on_trial [[
#if defined(_WIN32)
#define LLAMA_PY_FLAG __declspec(dllexport)
#else
#define LLAMA_PY_FLAG __attribute__((visibility("default")))
#endif
extern "C" { LLAMA_PY_FLAG unsigned char llama_py_trials_remove = 0; }
static thread_local bool llama_py_on_trial = false;
]])

function(llama_py_window_cells)
    if (NOT LLAMA_PY_WINDOW_CELLS)
        llama_py_note_rule(LLAMA_PY_WINDOW_CELLS "off")
        return()
    endif()
    set(folder "${LLAMA_PY_SOURCE_DIR}/src")
    llama_py_source_text(text "${folder}" llama-kv-cache.cpp)
    llama_py_exchange(text LLAMA_PY_WINDOW_CELLS
        "llama_kv_cache::slot_info_vec_t llama_kv_cache::prepare("
        "${llama_py_on_trial}\nllama_kv_cache::slot_info_vec_t llama_kv_cache::prepare(")
    llama_py_exchange(text LLAMA_PY_WINDOW_CELLS
        "        apply_ubatch(sinfo_new, ubatch);"
        "        llama_py_on_trial = !llama_py_trials_remove;\n        apply_ubatch(sinfo_new, ubatch);\n        llama_py_on_trial = false;")
    llama_py_exchange(text LLAMA_PY_WINDOW_CELLS
        "        if (seq_pos_max_rm[s] == -1) {"
        "        if (llama_py_on_trial || seq_pos_max_rm[s] == -1) {")
    llama_py_compile_copy(llama "${folder}" llama-kv-cache.cpp "${text}")
    llama_py_note_rule(LLAMA_PY_WINDOW_CELLS "applied")
endfunction()

llama_py_window_cells()
