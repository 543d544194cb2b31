// Memory of a thread, which it keeps for the next product; for q8_products.h and half_products.h.
#ifndef LLAMA_PY_THREAD_MEMORY_H
#define LLAMA_PY_THREAD_MEMORY_H

#include "ggml-impl.h"

#include <memory>

namespace llama_py {
namespace {

// ggml's memory, because not every C library has aligned_alloc (Windows).
struct Free {
    size_t size = 0;
    void operator()(void * p) const { ggml_aligned_free(p, size); }
};

class ThreadMemory {
  public:
    // At least so many bytes, at a multiple of 64; what was there before is gone.
    char * reserve(size_t bytes) {
        if (bytes > size) {
            memory.reset();
            size = (bytes + 4095)/4096*4096;
            memory.reset(ggml_aligned_malloc(size));
            memory.get_deleter().size = size;
            GGML_ASSERT(memory);
        }
        return (char *) memory.get();
    }

  private:
    std::unique_ptr<void, Free> memory;
    size_t size = 0;
};

} // namespace
} // namespace llama_py

#endif
