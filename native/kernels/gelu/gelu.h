// Included first into ggml's ops.cpp; see rule.cmake.
//
// ggml looks GELU up in a table of half-precision numbers, one number at a time: the argument and the result are
// rounded to 11 bits. This computes it in vectors, in single precision, as x*sigmoid(2u) with
// u = sqrt(2/pi)*(x + 0.044715*x^3), which is the same function as with tanh (Hendrycks and Gimpel, Gaussian Error
// Linear Units, 2016, section 2); and the "quick" one, x*sigmoid(1.702*x), likewise.
#ifndef LLAMA_PY_GELU_H
#define LLAMA_PY_GELU_H

#include "vec.h"

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__))

namespace llama_py {

#if defined(__AVX512F__) && defined(__AVX512DQ__)
struct Lanes {
    using Floats = __m512;
    static constexpr int COUNT = 16;
    static Floats load(const float * x)        { return _mm512_loadu_ps(x); }
    static void   store(float * to, Floats x)  { _mm512_storeu_ps(to, x); }
    static Floats all(float x)                 { return _mm512_set1_ps(x); }
    static Floats times(Floats a, Floats b)    { return _mm512_mul_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats plus(Floats a, Floats b)     { return _mm512_add_ps(a, b); }
    static Floats by(Floats a, Floats b)       { return _mm512_div_ps(a, b); }
};
#else
struct Lanes {
    using Floats = __m256;
    static constexpr int COUNT = 8;
    static Floats load(const float * x)        { return _mm256_loadu_ps(x); }
    static void   store(float * to, Floats x)  { _mm256_storeu_ps(to, x); }
    static Floats all(float x)                 { return _mm256_set1_ps(x); }
    static Floats times(Floats a, Floats b)    { return _mm256_mul_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static Floats plus(Floats a, Floats b)     { return _mm256_add_ps(a, b); }
    static Floats by(Floats a, Floats b)       { return _mm256_div_ps(a, b); }
};
#endif

// x*sigmoid(-exponent)
static inline Lanes::Floats damped(Lanes::Floats x, Lanes::Floats exponent) {
    return Lanes::by(x, Lanes::plus(Lanes::all(1.0f), ggml_v_expf(exponent)));
}

struct Gelu {
    static Lanes::Floats of(Lanes::Floats x) {
        const Lanes::Floats inner = Lanes::fma(
            Lanes::times(x, x), Lanes::all(-2.0f*SQRT_2_OVER_PI*GELU_COEF_A), Lanes::all(-2.0f*SQRT_2_OVER_PI));
        return damped(x, Lanes::times(x, inner));
    }
    static float of(float x) { return ggml_gelu_f32(x); }
};

struct QuickGelu {
    static Lanes::Floats of(Lanes::Floats x) { return damped(x, Lanes::times(x, Lanes::all(GELU_QUICK_COEF))); }
    static float of(float x) { return ggml_gelu_quick_f32(x); }
};

template <typename Function>
static void apply(int n, float * to, const float * x) {
    int i = 0;
    for (; i + Lanes::COUNT <= n; i += Lanes::COUNT) {
        Lanes::store(to + i, Function::of(Lanes::load(x + i)));
    }
    for (; i < n; ++i) {
        to[i] = Function::of(x[i]);
    }
}

template <typename Function>
static void apply_gated(int n, float * to, const float * x, const float * gate) {
    int i = 0;
    for (; i + Lanes::COUNT <= n; i += Lanes::COUNT) {
        Lanes::store(to + i, Lanes::times(Function::of(Lanes::load(x + i)), Lanes::load(gate + i)));
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
