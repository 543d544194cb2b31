#include "llama_py_nextn.h"

#include "llama-ext.h"

extern "C" {

void llama_py_nextn_enable(struct llama_context * context, bool on, bool every) {
    llama_set_embeddings_nextn(context, on, !every);
}

const float * llama_py_nextn_rows(struct llama_context * context) {
    return llama_get_embeddings_nextn(context);
}

const float * llama_py_nextn_row(struct llama_context * context, int32_t index) {
    return llama_get_embeddings_nextn_ith(context, index);
}

} // extern "C"
