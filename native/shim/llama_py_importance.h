/* How much each input of each weight matters: sums over the inputs of a model's matrix products.
 *
 * A callback into Python for each of them would take longer than the products.
 */
#ifndef LLAMA_PY_IMPORTANCE_H
#define LLAMA_PY_IMPORTANCE_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context_params;
typedef struct llama_py_importance * llama_py_importance_p;

/* The sums of one weight. They last until the next llama_decode of the context.
 *
 * squares, sums  n_values floats: for each expert (or matrix) a row of the weight's inputs.
 * counts         n_counts numbers of rows that were summed: one of each expert, or one.
 */
struct llama_py_importance_entry {
    const char * name;
    const float * squares;
    const float * sums;
    int64_t n_values;
    const int64_t * counts;
    int64_t n_counts;
};

/* output  the inputs of the output matrix as well, and not those of layers alone. */
LLAMA_PY_CHAT_API llama_py_importance_p llama_py_importance_new(bool output);
LLAMA_PY_CHAT_API void llama_py_importance_free(llama_py_importance_p importance);

/* A context that is made with `params` is watched from then on; `importance` has to outlive it. */
LLAMA_PY_CHAT_API void llama_py_importance_watch(
    llama_py_importance_p importance, struct llama_context_params * params);

LLAMA_PY_CHAT_API int32_t llama_py_importance_count(llama_py_importance_p importance);

/* The entry of an index below the count; in the order of names. */
LLAMA_PY_CHAT_API void llama_py_importance_get(
    llama_py_importance_p importance, int32_t index, struct llama_py_importance_entry * entry);

/* The first weight whose inputs were not finite, or whose shape changed; NULL if there is none. */
LLAMA_PY_CHAT_API const char * llama_py_importance_problem(llama_py_importance_p importance);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_IMPORTANCE_H */
