// Included first into ggml's ops.cpp; see rule.cmake.
//
// ggml looks GELU up in a table of half-precision numbers, one number at a time: the argument and the result are
// rounded to 11 bits. This computes it in vectors, in single precision, as x*sigmoid(2u) with
// u = sqrt(2/pi)*(x + 0.044715*x^3), which is the same function as with tanh (Hendrycks and Gimpel, Gaussian Error
// Linear Units, 2016, section 2); and the "quick" one, x*sigmoid(1.702*x), likewise.
#ifndef LLAMA_PY_GELU_H
#define LLAMA_PY_GELU_H

#include "../reached.h"
#include "../vectors.h"
#include "vec.h"

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))

LLAMA_PY_REACHABLE(gelu)

namespace llama_py {

// x*sigmoid(-exponent)
static inline Floats damped(Floats x, Floats exponent) {
    return by(x, plus(all(1.0f), ggml_v_expf(exponent)));
}

static constexpr int COUNT = WIDTH;  // ggml counts in int here

struct Gelu {
    static Floats of(Floats x) {
        const Floats inner = fma(times(x, x), all(-2.0f*SQRT_2_OVER_PI*GELU_COEF_A), all(-2.0f*SQRT_2_OVER_PI));
        return damped(x, times(x, inner));
    }
    static float of(float x) { return ggml_gelu_f32(x); }
};

struct QuickGelu {
    static Floats of(Floats x) { return damped(x, times(x, all(GELU_QUICK_COEF))); }
    static float of(float x) { return ggml_gelu_quick_f32(x); }
};

template <typename Function>
static void apply(int n, float * to, const float * x) {
    LLAMA_PY_REACHED(gelu);
    int i = 0;
    for (; i + COUNT <= n; i += COUNT) {
        store(to + i, Function::of(load(x + i)));
    }
    for (; i < n; ++i) {
        to[i] = Function::of(x[i]);
    }
}

template <typename Function>
static void apply_gated(int n, float * to, const float * x, const float * gate) {
    LLAMA_PY_REACHED(gelu);
    int i = 0;
    for (; i + COUNT <= n; i += COUNT) {
        store(to + i, times(Function::of(load(x + i)), load(gate + i)));
    }
    for (; i < n; ++i) {
        to[i] = Function::of(x[i])*gate[i];
    }
}

} // namespace llama_py

#define ggml_vec_gelu_f32        llama_py::apply<llama_py::Gelu>
#define ggml_vec_gelu_quick_f32  llama_py::apply<llama_py::QuickGelu>
#define ggml_vec_geglu_f32       llama_py::apply_gated<llama_py::Gelu>
#define ggml_vec_geglu_quick_f32 llama_py::apply_gated<llama_py::QuickGelu>

#endif
#endif
