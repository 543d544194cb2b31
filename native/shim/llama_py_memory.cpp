#include "llama_py_memory.h"

#include "ggml-backend.h"
#include "llama-ext.h"

#include <exception>

extern "C" {

int32_t llama_py_memory_rows(
    const struct llama_context * context, struct llama_py_memory_row * rows, int32_t capacity) {
    try {
        int32_t count = 0;
        for (const auto & [type, bytes] : llama_get_memory_breakdown(context)) {
            if (count < capacity) {
                ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
                rows[count] = {
                    device != nullptr ? ggml_backend_dev_name(device) : nullptr,
                    ggml_backend_buft_name(type),
                    ggml_backend_buft_is_host(type),
                    bytes.model,
                    bytes.context,
                    bytes.compute,
                };
            }
            count++;
        }
        return count;
    } catch (const std::exception &) {  // there was no memory for the table
        return -1;
    }
}

} // extern "C"
