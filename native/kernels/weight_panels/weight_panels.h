// Included first into ggml's ggml-cpu.cpp; see rule.cmake.
//
// ggml-cpu.cpp lists the types of buffers in which weights have an arrangement of their own; a weight goes to the
// first of them that multiplies it. This puts ours before ggml's "CPU_REPACK", wherever that one is.
#ifndef LLAMA_PY_WEIGHT_PANELS_H
#define LLAMA_PY_WEIGHT_PANELS_H

#include "panel_vectors.h"

#if defined(GGML_USE_CPU_REPACK) && defined(LLAMA_PY_PANELS)

#include "repack.h"

#include <algorithm>
#include <vector>

ggml_backend_buffer_type_t llama_py_weight_panels(void);

static inline ggml_backend_buffer_type_t llama_py_panels_then_repack(std::vector<ggml_backend_buffer_type_t> & types) {
    if (std::find(types.begin(), types.end(), llama_py_weight_panels()) == types.end()) {
        types.push_back(llama_py_weight_panels());
    }
    return ggml_backend_cpu_repack_buffer_type();
}

// It is only called where the list is made, whose name is `bufts`.
#define ggml_backend_cpu_repack_buffer_type() llama_py_panels_then_repack(bufts)

#endif
#endif
