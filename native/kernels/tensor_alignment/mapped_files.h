// Included first into llama.cpp's llama-model-loader.cpp; see rule.cmake.
//
// A file that is open already (llama_model_load_from_file_ptr) is mapped where its tensors lie, and refused if they
// begin at no multiple of the alignment of the CPU's buffers. Files still promise 32 bytes, whatever
// tensor_alignment.h makes these buffers report, and the kernels still take that.
#ifndef LLAMA_PY_MAPPED_FILES_H
#define LLAMA_PY_MAPPED_FILES_H

#include "ggml-backend.h"

static inline size_t llama_py_alignment_of_files(ggml_backend_buffer_type_t) {
    return 32;  // TENSOR_ALIGNMENT of ggml-impl.h
}

#define ggml_backend_buft_get_alignment llama_py_alignment_of_files

#endif
