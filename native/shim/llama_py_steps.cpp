#include "llama_py_steps.h"

#include "llama_py_logits.h"

#include <chrono>

using steady = std::chrono::steady_clock;

static double seconds_between(steady::time_point from, steady::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// The token that a sampler draws from the likeliest ones.
static llama_token draw(llama_sampler * sampler, const float * logits, int32_t n_vocab, int32_t top_k) {
    int32_t ids[LLAMA_PY_STEPS_MOST_CANDIDATES];
    llama_token_data candidates[LLAMA_PY_STEPS_MOST_CANDIDATES];
    const int32_t count = top_k < n_vocab ? top_k : n_vocab;
    if (llama_py_logits_top(logits, n_vocab, count, ids, nullptr) != LLAMA_PY_LOGITS_OK) {
        return LLAMA_PY_STEPS_NO_TOKEN;
    }
    for (int32_t i = 0; i < count; ++i) {
        candidates[i] = {ids[i], logits[ids[i]], 0.0f};
    }
    llama_token_data_array array = {candidates, static_cast<size_t>(count), -1, true};
    llama_sampler_apply(sampler, &array);
    if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) {
        return LLAMA_PY_STEPS_NO_TOKEN;
    }
    const llama_token token = array.data[array.selected].id;
    llama_sampler_accept(sampler, token);
    return token;
}

extern "C" int32_t llama_py_decode_steps(
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
        int32_t              * code) {
    const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(context));
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    const volatile int32_t * hurried = hurry;
    const auto begun = steady::now();
    auto now = begun;
    for (int32_t step = 0; step < most; ++step) {
        *code = llama_decode(context, batch);
        llama_synchronize(context);  // the time until the logits are there belongs to it
        const auto decoded = steady::now();
        times[0] = seconds_between(now, decoded);
        times[1] = 0.0;
        if (*code != 0) {
            return step;
        }
        bool ends = false;
        for (int32_t row = 0; row < batch.n_tokens; ++row) {
            const float * logits = llama_get_logits_ith(context, row);
            int32_t token = LLAMA_PY_STEPS_NO_TOKEN;
            if (logits) {
                token = samplers[row] ? draw(samplers[row], logits, n_vocab, top_k[row])
                                      : llama_py_logits_highest(logits, n_vocab);
            }
            chosen[row] = token;
            ends = ends || token < 0 || (!endless[row] && llama_vocab_is_eog(vocab, token));
            batch.token[row] = token;
            batch.pos[row] += 1;
        }
        now = steady::now();
        times[1] = seconds_between(decoded, now);
        chosen += batch.n_tokens;
        times  += 2;
        if (ends || *hurried != 0 || seconds_between(begun, now) >= seconds) {
            return step + 1;
        }
    }
    return most;
}
