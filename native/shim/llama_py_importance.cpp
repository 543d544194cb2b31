#include "llama_py_importance.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

// Fewer rows are steps of replies, not of texts (as llama-imatrix has it).
constexpr int64_t FEWEST_ROWS = 16;

struct Sums {
    std::vector<float> squares, sums;
    std::vector<int64_t> counts;
};

// Of "CUDA0#blk.0.attn_k.weight#0", which the scheduler names copies, the part in the middle.
std::string plain_name(const char * name) {
    const char * first = std::strchr(name, '#');
    if (!first) {
        return name;
    }
    const char * second = std::strchr(first + 1, '#');
    return second ? std::string(first + 1, second) : std::string(first + 1);
}

bool is_finite(const float * values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        if (!std::isfinite(values[i])) {
            return false;
        }
    }
    return true;
}

void add_row(const float * row, int64_t count, float * squares, float * sums) {
    for (int64_t i = 0; i < count; ++i) {
        squares[i] += row[i] * row[i];
        sums[i] += row[i];
    }
}

} // namespace

struct llama_py_importance {
    bool output;
    std::map<std::string, Sums> weights;
    std::string problem;
    std::vector<char> inputs, ids;

    bool wants(const ggml_tensor * node) const {
        if (node->op == GGML_OP_MUL_MAT_ID) {
            return true;
        }
        const ggml_tensor * input = node->src[1];
        if (node->op != GGML_OP_MUL_MAT || input->type != GGML_TYPE_F32 || input->ne[1] < FEWEST_ROWS) {
            return false;
        }
        const std::string name = plain_name(node->src[0]->name);
        return name.rfind("blk.", 0) == 0 ||
            (output && (name == "output.weight" || name == "token_embd.weight"));
    }

    const char * bytes_of(const ggml_tensor * tensor, std::vector<char> & copy) {
        if (!tensor->buffer || ggml_backend_buffer_is_host(tensor->buffer)) {
            return static_cast<const char *>(tensor->data);
        }
        copy.resize(ggml_nbytes(tensor));
        ggml_backend_tensor_get(tensor, copy.data(), 0, copy.size());
        return copy.data();
    }

    Sums * sums_of(const std::string & name, int64_t n_values, int64_t n_counts) {
        Sums & found = weights[name];
        if (found.squares.empty()) {
            found.squares.assign(n_values, 0.0f);
            found.sums.assign(n_values, 0.0f);
            found.counts.assign(n_counts, 0);
        }
        const bool fits = (int64_t) found.squares.size() == n_values &&
            (int64_t) found.counts.size() == n_counts;
        if (!fits && problem.empty()) {
            problem = name;
        }
        return fits ? &found : nullptr;
    }

    void check(const std::string & name, const float * squares, int64_t count) {
        if (problem.empty() && !is_finite(squares, count)) {
            problem = name;
        }
    }

    void see(const ggml_tensor * node) {
        const ggml_tensor * weight = node->src[0];
        const ggml_tensor * input = node->src[1];
        const std::string name = plain_name(weight->name);
        const char * data = bytes_of(input, inputs);
        if (node->op == GGML_OP_MUL_MAT_ID) {
            see_experts(name, weight, input, node->src[2], data);
            return;
        }
        const int64_t width = input->ne[0], matrices = weight->ne[2] * weight->ne[3];
        Sums * found = sums_of(name, width * matrices, 1);
        if (!found) {
            return;
        }
        for (int64_t i3 = 0; i3 < input->ne[3]; ++i3) {
            for (int64_t i2 = 0; i2 < input->ne[2]; ++i2) {
                const int64_t at = (i3 % weight->ne[3]) * weight->ne[2] + i2 % weight->ne[2];
                for (int64_t row = 0; row < input->ne[1]; ++row) {
                    const char * place =
                        data + row * input->nb[1] + i2 * input->nb[2] + i3 * input->nb[3];
                    add_row(reinterpret_cast<const float *>(place), width,
                        &found->squares[at * width], &found->sums[at * width]);
                }
            }
        }
        found->counts[0] += ggml_nrows(input) / matrices;
        check(name, found->squares.data(), width * matrices);
    }

    void see_experts(const std::string & name, const ggml_tensor * weight, const ggml_tensor * input,
        const ggml_tensor * chosen, const char * data) {
        const int64_t width = input->ne[0], experts = weight->ne[2];
        Sums * found = sums_of(name, width * experts, experts);
        if (!found) {
            return;
        }
        const char * numbers = bytes_of(chosen, ids);
        for (int64_t slot = 0; slot < chosen->ne[0]; ++slot) {
            for (int64_t token = 0; token < input->ne[2]; ++token) {
                const char * number = numbers + token * chosen->nb[1] + slot * chosen->nb[0];
                const int32_t expert = *reinterpret_cast<const int32_t *>(number);
                if (expert < 0 || expert >= experts) {
                    continue;
                }
                const char * place =
                    data + (slot % input->ne[1]) * input->nb[1] + token * input->nb[2];
                add_row(reinterpret_cast<const float *>(place), width,
                    &found->squares[expert * width], &found->sums[expert * width]);
                ++found->counts[expert];
            }
        }
        check(name, found->squares.data(), width * experts);
    }
};

namespace {

bool callback(ggml_tensor * node, bool ask, void * data) {
    auto * importance = static_cast<llama_py_importance *>(data);
    if (ask) {
        return importance->wants(node);
    }
    importance->see(node);
    return true;
}

} // namespace

extern "C" {

llama_py_importance_p llama_py_importance_new(bool output) {
    auto * made = new llama_py_importance();
    made->output = output;
    return made;
}

void llama_py_importance_free(llama_py_importance_p importance) {
    delete importance;
}

void llama_py_importance_watch(
    llama_py_importance_p importance, struct llama_context_params * params) {
    params->cb_eval = callback;
    params->cb_eval_user_data = importance;
}

int32_t llama_py_importance_count(llama_py_importance_p importance) {
    return (int32_t) importance->weights.size();
}

void llama_py_importance_get(
    llama_py_importance_p importance, int32_t index, struct llama_py_importance_entry * entry) {
    const auto & [name, sums] = *std::next(importance->weights.begin(), index);
    *entry = {
        name.c_str(), sums.squares.data(), sums.sums.data(), (int64_t) sums.squares.size(),
        sums.counts.data(), (int64_t) sums.counts.size(),
    };
}

const char * llama_py_importance_problem(llama_py_importance_p importance) {
    return importance->problem.empty() ? nullptr : importance->problem.c_str();
}

} // extern "C"
