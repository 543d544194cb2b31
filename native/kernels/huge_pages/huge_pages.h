// Included first into ggml.c; see rule.cmake.
//
// Weights that the CPU's kernels lay out anew and the buffers of graphs lie in memory that
// ggml_aligned_malloc takes (so do cells, which cells_on_demand has in small pages). Here it asks Linux for transparent huge pages, so that a step that reads
// all weights misses fewer translations, and the caches see less of where the small pages happen to be.
// Where the system does not give them (/sys/kernel/mm/transparent_hugepage/enabled says "never"), or
// gives them anyway, nothing changes. It can go when ggml asks itself.
#ifndef LLAMA_PY_HUGE_PAGES_H
#define LLAMA_PY_HUGE_PAGES_H

#if defined(__linux__)
#include "../reached.h"

#include <stdlib.h>
#include <sys/mman.h>

#if defined(MADV_HUGEPAGE)
LLAMA_PY_REACHABLE(huge_pages)

enum { llama_py_huge_page = 2 * 1024 * 1024 };

// Two of them at least: what is smaller would gain little, and would be rounded up.
static inline int llama_py_memalign(void ** memory, size_t alignment, size_t size) {
    if (size < 2 * (size_t) llama_py_huge_page) {
        return posix_memalign(memory, alignment, size);
    }
    const int result = posix_memalign(memory, llama_py_huge_page, size);
    LLAMA_PY_REACHED(huge_pages);
    if (result == 0) {
        // Whole pages: what follows the buffer is not ours. A refusal is no fault.
        (void) madvise(*memory, size - size % llama_py_huge_page, MADV_HUGEPAGE);
    }
    return result;
}

#define posix_memalign(memory, alignment, size) llama_py_memalign(memory, alignment, size)
#endif
#endif

#endif
