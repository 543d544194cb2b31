// Included first into ggml-backend.cpp, whose large memsets are those that clear the cells of a context; see rule.cmake.
//
// What is to be zeros is given back to Linux, which has zeros for whoever reads it next, and memory when something is
// written. So cells that no conversation needs take none, and nobody waits for their being cleared.
#ifndef LLAMA_PY_CELLS_ON_DEMAND_H
#define LLAMA_PY_CELLS_ON_DEMAND_H

#if defined(__linux__)
#include "../reached.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

LLAMA_PY_REACHABLE(cells_on_demand)

// What is smaller is written in less time than the system needs for all that.
enum { llama_py_worth_giving_back = 1 << 20 };

// Whole pages of the memory, if they are zeros now. Of memory that is shared with other processes, or that is locked, the
// system keeps what was there, or says no.
static inline bool llama_py_given_back(char * pages, size_t size) {
    if (madvise(pages, size, MADV_DONTNEED) != 0 || pages[0] != 0 || pages[size - 1] != 0) {
        return false;
    }
#if defined(MADV_NOHUGEPAGE)
    // The first token of a context writes a little in each layer: in huge pages that would be most of a small context.
    (void) madvise(pages, size, MADV_NOHUGEPAGE);
#endif
    LLAMA_PY_REACHED(cells_on_demand);
    return true;
}

static inline void * llama_py_clear(void * memory, int value, size_t size) {
    if (value != 0 || size < llama_py_worth_giving_back) {
        return memset(memory, value, size);
    }
    const size_t page = (size_t) sysconf(_SC_PAGESIZE);
    char * const begin = (char *) memory, * const end = begin + size;
    // Whole pages: what lies around the buffer is not ours.
    char * const first = (char *) (((uintptr_t) begin + page - 1)/page*page);
    const size_t whole = (size_t) (end - first)/page*page;
    if (!llama_py_given_back(first, whole)) {
        return memset(memory, 0, size);
    }
    memset(begin, 0, (size_t) (first - begin));
    memset(first + whole, 0, (size_t) (end - first) - whole);
    return memory;
}

#define memset(memory, value, size) llama_py_clear(memory, value, size)
#endif

#endif
