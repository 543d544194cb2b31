#include "llama_py_vocab.h"

#include "llama.h"

extern "C" void llama_py_vocab_attributes(
        const struct llama_vocab * vocab, int32_t n, int32_t * attributes) {
    for (int32_t token = 0; token < n; ++token) {
        attributes[token] = llama_vocab_get_attr(vocab, token);
    }
}
