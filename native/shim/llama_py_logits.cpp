#include "llama_py_logits.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

namespace {

constexpr int64_t BLOCK = 2048;  // entries that the first-level cache holds
constexpr int     LANES = 32;  // as many as compilers keep a loop over, which they then vectorize

// exp(x) for x <= 0, to 2e-7 of itself; below -87, where it is next to nothing, exp(-87).
INLINE float exp_below_zero(float x) {
    x = x > -87.0f ? x : -87.0f;
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded
    const float shifted = x * 1.44269504f + ROUND;
    const float whole   = shifted - ROUND;
    const float rest    = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    // Taylor's series on [-0.35, 0.35]: the next term is below 2e-7.
    float sum = 1.0f / 720.0f;
    sum = sum * rest + 1.0f / 120.0f;
    sum = sum * rest + 1.0f / 24.0f;
    sum = sum * rest + 1.0f / 6.0f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    int32_t bits, power;
    std::memcpy(&bits, &sum, sizeof bits);
    std::memcpy(&power, &shifted, sizeof power);
    bits += static_cast<int32_t>(static_cast<uint32_t>(power) << 23);
    std::memcpy(&sum, &bits, sizeof sum);
    return sum;
}

// The largest entry; NaN if one is among them. `n` is a multiple of LANES.
INLINE float highest_of(const float * logits, int64_t n) {
    float highest[LANES];
    int32_t odd[LANES] = {};
    for (int lane = 0; lane < LANES; ++lane) {
        highest[lane] = -INFINITY;
    }
    for (int64_t i = 0; i < n; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            const float x = logits[i + lane];
            highest[lane] = x > highest[lane] ? x : highest[lane];
            odd[lane] |= x != x;
        }
    }
    float best = -INFINITY;
    for (int lane = 0; lane < LANES; ++lane) {
        if (odd[lane]) {
            return NAN;
        }
        best = highest[lane] > best ? highest[lane] : best;
    }
    return best;
}

// The sum of exp(logits[i] - top); `n` is a multiple of LANES.
INLINE float sum_of(const float * logits, int64_t n, float top) {
    float sums[LANES] = {};
    for (int64_t i = 0; i < n; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            sums[lane] += exp_below_zero(logits[i + lane] - top);
        }
    }
    float total = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) {
        total += sums[lane];
    }
    return total;
}

// The largest entries so far, in order; equal ones as they came.
struct Largest {
    const float * logits;
    int32_t     * ids;
    int32_t       k;
    int32_t       held = 0;

    float bound() const { return held < k ? -INFINITY : logits[ids[k - 1]]; }

    bool full() const { return held == k; }

    void offer(int32_t id) {
        const float value = logits[id];
        if (full() && !(value > bound())) {
            return;
        }
        int32_t place = full() ? k - 1 : held++;
        for (; place > 0 && logits[ids[place - 1]] < value; --place) {
            ids[place] = ids[place - 1];
        }
        ids[place] = id;
    }
};

// This library is compiled for any CPU of its kind. The loops are there once more for wider vectors.
struct Loops {
    float (*highest)(const float *, int64_t);
    float (*sum)(const float *, int64_t, float);
};

float highest_plain(const float * logits, int64_t n) { return highest_of(logits, n); }
float sum_plain(const float * logits, int64_t n, float top) { return sum_of(logits, n, top); }

#if defined(__x86_64__) && defined(__GNUC__)
#define AVX2 __attribute__((target("avx2,fma")))
AVX2 float highest_avx2(const float * logits, int64_t n) { return highest_of(logits, n); }
AVX2 float sum_avx2(const float * logits, int64_t n, float top) { return sum_of(logits, n, top); }

Loops choose() {
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return {highest_avx2, sum_avx2};
    }
    return {highest_plain, sum_plain};
}
#else
Loops choose() { return {highest_plain, sum_plain}; }
#endif

const Loops loops = choose();

} // namespace

extern "C" int32_t llama_py_logits_highest(const float * logits, int32_t n) {
    float   best  = -INFINITY;
    int64_t found = -1;  // where the block begins that has it
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const int64_t whole = count / LANES * LANES;
        float highest = loops.highest(logits + start, whole);
        for (int64_t i = start + whole; i < start + count && highest == highest; ++i) {
            highest = logits[i] > highest || logits[i] != logits[i] ? logits[i] : highest;
        }
        if (highest != highest) {
            return -1;
        }
        if (highest > best) {
            best  = highest;
            found = start;
        }
    }
    while (found >= 0 && logits[found] != best) {
        ++found;
    }
    return static_cast<int32_t>(found);
}

extern "C" int32_t llama_py_logits_top(
        const float * logits, int64_t n, int32_t k, int32_t * ids, double * normalizer) {
    Largest largest{logits, ids, k};
    float  top   = -INFINITY;
    double total = 0.0;
    float  padded[LANES];
    for (int64_t start = 0; start < n;) {
        int64_t count = n - start < BLOCK ? (n - start) / LANES * LANES : BLOCK;
        const float * block = logits + start;
        int64_t entries = count;
        if (count == 0) {  // fewer than LANES are left
            entries = n - start;
            count   = LANES;
            for (int lane = 0; lane < LANES; ++lane) {
                padded[lane] = lane < entries ? block[lane] : -INFINITY;
            }
            block = padded;
        }
        const float highest = loops.highest(block, count);
        if (std::isnan(highest) || highest == INFINITY) {
            return LLAMA_PY_LOGITS_WEIRD;
        }
        if (highest > top) {
            total = normalizer ? total * std::exp(static_cast<double>(top) - highest) : 0.0;
            top = highest;
        }
        if (normalizer && highest > -INFINITY) {
            total += loops.sum(block, count, top);
        }
        if (k > 0 && (!largest.full() || highest > largest.bound())) {
            for (int64_t i = start; i < start + entries; ++i) {
                largest.offer(static_cast<int32_t>(i));
            }
        }
        start += entries;
    }
    if (top == -INFINITY) {
        return LLAMA_PY_LOGITS_WEIRD;
    }
    if (normalizer) {
        *normalizer = top + std::log(total);
    }
    return LLAMA_PY_LOGITS_OK;
}
