#include "llama_py_log.h"

#include "llama.h"

#include <atomic>

namespace {

std::atomic<llama_py_log_receiver> receiver{nullptr};

thread_local int32_t least   = 0;
thread_local bool    passing = true; // whether the line that is being written is wanted

void pass_on(enum ggml_log_level level, const char * text, void * data) {
    if (level != GGML_LOG_LEVEL_CONT) {
        passing = (int32_t) level >= least;
    }
    if (passing) {
        receiver.load(std::memory_order_acquire)(level, text, data);
    }
}

} // namespace

extern "C" void llama_py_log_to(llama_py_log_receiver one) {
    receiver.store(one, std::memory_order_release);
    llama_log_set(pass_on, nullptr); // ggml's, too
}

extern "C" void llama_py_log_least(int32_t level) {
    least   = level;
    passing = true;
}
