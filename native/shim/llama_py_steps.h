/* Steps of streams whose tokens need nothing but the logits: decode, choose, and again.
 *
 * One call for a step, or for several: on a small model, what the interpreter does between two steps
 * takes a good part of the time of a step.
 */
#ifndef LLAMA_PY_STEPS_H
#define LLAMA_PY_STEPS_H

#include "llama_py_chat.h"

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the row of a step has instead of a token: every logit is -inf, or one is not a number. */
#define LLAMA_PY_STEPS_NO_TOKEN (-1)

/* A row that draws has at most so many candidates. */
#define LLAMA_PY_STEPS_MOST_CANDIDATES 64

/* Decodes a batch with one token for each stream, chooses the next token of each, and goes on with
 * those as the next batch: their tokens are written into it, and their positions counted up.
 *
 * No further step begins after `most` steps or `seconds`, when *hurry is not 0, when a row has no
 * token, or when a token ends its reply.
 *
 * batch    all of its tokens are outputs.
 * samplers for each row, what draws from its most likely tokens, and is told which one it was (it
 *          gets them in order, the likeliest first); NULL takes the most likely one.
 * top_k    for each row that draws, how many candidates there are: from 1 to the most there can be.
 * endless  for each row, whether its reply goes on behind tokens that end a reply.
 * hurry    may be written by other threads.
 * chosen   most rows of batch.n_tokens tokens; those of the steps that were done are written.
 * times    most pairs: the seconds of decoding, and of choosing; also of a step that fails.
 * code     what llama_decode returned last; unless it is 0, that step has failed.
 *
 * Returns the number of steps that were done.
 */
LLAMA_PY_CHAT_API int32_t llama_py_decode_steps(
        struct llama_context * context,
        struct llama_batch     batch,
        int32_t                most,
        double                 seconds,
        struct llama_sampler * const * samplers,
        const int32_t        * top_k,
        const int8_t         * endless,
        const int32_t        * hurry,
        int32_t              * chosen,
        double               * times,
        int32_t              * code);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_STEPS_H */
