#include "llama_py_abort.h"

#include "llama.h"

#include <atomic>
#include <chrono>
#include <new>

using steady = std::chrono::steady_clock;

struct llama_py_abort {
    std::atomic<bool>  wanted{false};
    bool               timed = false;
    steady::time_point deadline;
};

// Called by one thread at a time. A wish is granted once, so that none is left over for good.
static bool is_wanted(void * data) {
    auto * abort = static_cast<llama_py_abort *>(data);
    if (abort->wanted.load(std::memory_order_relaxed)) {
        abort->wanted.store(false, std::memory_order_relaxed);
        return true;
    }
    return abort->timed && steady::now() >= abort->deadline;
}

extern "C" {

struct llama_py_abort * llama_py_abort_init(void) {
    return new (std::nothrow) llama_py_abort();
}

void llama_py_abort_free(struct llama_py_abort * abort) {
    delete abort;
}

void llama_py_abort_attach(struct llama_py_abort * abort, struct llama_context * context) {
    llama_set_abort_callback(context, is_wanted, abort);
}

void llama_py_abort_ask(struct llama_py_abort * abort) {
    abort->wanted.store(true, std::memory_order_relaxed);
}

void llama_py_abort_after(struct llama_py_abort * abort, double seconds) {
    // Beyond a year there is no deadline worth the name, and the clock's type might overflow.
    abort->timed = seconds < 365.0 * 24 * 3600;
    if (abort->timed) {
        abort->deadline = steady::now() + std::chrono::duration_cast<steady::duration>(
            std::chrono::duration<double>(seconds));
    }
}

} // extern "C"
