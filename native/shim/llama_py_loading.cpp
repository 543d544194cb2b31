#include "llama_py_loading.h"

extern "C" bool llama_py_loading_progress(float done, void * data) {
    auto * loading = static_cast<llama_py_loading *>(data);
    // Written by another thread; whether it is seen at this tensor or at the next one is the same.
    if (*static_cast<volatile bool *>(&loading->stopped)) {
        return false;
    }
    loading->done = done;
    if (done < loading->next && done < 1.0f) {
        return true;
    }
    loading->next = done + loading->step;
    return loading->ask(done, data);
}
