# Flash attention adds up cell by cell, in single precision: where a sequence's tokens lie in another order, its
# logits are rounded otherwise. llama.cpp looks for free cells from where it wrote last, or from the beginning, so
# that the end of a reply may lie before its prompt, depending on what other sequences left. Behind the last token
# of the sequence they lie in order, as long as there is room, and equal calls give equal logits. In the cache of a
# sliding window, cells of others that their window has passed count as room: from its beginning on, a new sequence
# would take those before it takes free ones, and others could not go back any more.
option(LLAMA_PY_CELL_ORDER
    "The cells of a sequence that is decoded alone lie in the order of its tokens; off: where llama.cpp finds room" ON)

# A test sets the flag that the library exports: whether cells are looked for as without the rule.
set(llama_py_cell_order [[
#if defined(_WIN32)
#define LLAMA_PY_ORDER_FLAG __declspec(dllexport)
#else
#define LLAMA_PY_ORDER_FLAG __attribute__((visibility("default")))
#endif
extern "C" { LLAMA_PY_ORDER_FLAG unsigned char llama_py_cells_anywhere = 0; }

// The cell behind the last token of the sequence; the first one for a sequence that is empty.
static uint32_t llama_py_behind(const llama_kv_cells & cells, llama_seq_id seq_id) {
    const auto & held = cells.seq_pos_get(seq_id);
    return held.empty() ? 0 : held.rbegin()->second + 1;
}
]])

function(llama_py_order_cells)
    if (NOT LLAMA_PY_CELL_ORDER)
        llama_py_note_rule(LLAMA_PY_CELL_ORDER "off")
        return()
    endif()
    set(folder "${LLAMA_PY_SOURCE_DIR}/src")
    llama_py_source_text(text "${folder}" llama-kv-cache.cpp)
    llama_py_exchange(text LLAMA_PY_CELL_ORDER
        "llama_kv_cache::slot_info llama_kv_cache::find_slot("
        "${llama_py_cell_order}\nllama_kv_cache::slot_info llama_kv_cache::find_slot(")
    llama_py_exchange(text LLAMA_PY_CELL_ORDER
        "        if (head_cur > cells.get_used() + 2*n_tokens) {"
        "        if (!llama_py_cells_anywhere && n_swa == 0 && (n_stream > 1 || ubatch.n_seqs_unq == 1)) {
            head_cur = llama_py_behind(cells, seq_id);
        } else if (head_cur > cells.get_used() + 2*n_tokens) {")
    llama_py_compile_copy(llama "${folder}" llama-kv-cache.cpp "${text}")
    llama_py_note_rule(LLAMA_PY_CELL_ORDER "applied")
endfunction()

llama_py_order_cells()
