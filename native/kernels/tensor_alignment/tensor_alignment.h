// Included first into those files of ggml that say how tensors are aligned in the CPU's buffers; see
// rule.cmake.
//
// ggml puts tensors at multiples of 32 bytes, since a GGUF file promises no more for weights that are
// mapped. So what a graph computes may lie across the processor's cache lines, and every load and store
// of 64 bytes (AVX-512, AMX) then touches two of them. Whether it does depends on the sizes of all
// tensors before it: on n_ubatch, n_seq_max and the context. Buffers that ggml allocates begin at
// multiples of 64; only the next tensor does not.
//
// This changes what the CPU's types of buffers report, in the functions whose names end in
// get_alignment, and nothing else: mapped weights stay where they are. It can go when TENSOR_ALIGNMENT
// is 64 there; test_tensor_alignment.py says whether it is.
#ifndef LLAMA_PY_TENSOR_ALIGNMENT_H
#define LLAMA_PY_TENSOR_ALIGNMENT_H

#include "../function_name.h"
#include "../reached.h"
#include "ggml-impl.h"

LLAMA_PY_REACHABLE(tensor_alignment)

enum { llama_py_alignment_of_files = TENSOR_ALIGNMENT, llama_py_alignment_of_buffers = 64 };

static inline int llama_py_alignment(bool of_buffers) {
    if (!of_buffers) {
        return llama_py_alignment_of_files;
    }
    LLAMA_PY_REACHED(tensor_alignment);
    return llama_py_alignment_of_buffers;
}

#undef TENSOR_ALIGNMENT
#define TENSOR_ALIGNMENT llama_py_alignment(llama_py_ends_in(__func__, "get_alignment"))

#endif
