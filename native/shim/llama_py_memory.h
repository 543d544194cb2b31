/* How much memory a context takes, and its model, by the device that it is on.
 *
 * llama.cpp has this function as C++ only, in a header that is not installed (src/llama-ext.h).
 */
#ifndef LLAMA_PY_MEMORY_H
#define LLAMA_PY_MEMORY_H

#include "llama_py_chat.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;

/* The buffers of one type.
 *
 * device   the name of its device, such as "CPU" or "Vulkan0"; NULL if it has none.
 * buffers  the name of the type, such as "CPU_Mapped".
 * on_host  the processor reads and writes it.
 * model    bytes of weights.
 * context  bytes of the KV cells, and of recurrent states.
 * compute  bytes that a step computes in.
 *
 * Both names last as long as the process.
 */
struct llama_py_memory_row {
    const char * device;
    const char * buffers;
    bool on_host;
    size_t model;
    size_t context;
    size_t compute;
};

/* Writes at most `capacity` rows, and returns how many there are; -1 if there is no telling. */
LLAMA_PY_CHAT_API int32_t llama_py_memory_rows(
    const struct llama_context * context, struct llama_py_memory_row * rows, int32_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_MEMORY_H */
