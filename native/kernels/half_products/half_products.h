// Included first into llamafile's sgemm.cpp; see rule.cmake.
//
// llamafile's product of two matrices in F16 converts numbers of both each time that it multiplies them, ten
// conversions for 24 vectors of products, and adds the numbers of a vector up at the end of each sum. Here both are
// converted once, rows of the first interleaved, so that each number of a vector is the sum of a row: nothing but
// multiplications remains. Sums are in single precision, as before.
//
// This specializes llamafile's template, which is declared here and defined in the file that follows.
#ifndef LLAMA_PY_HALF_PRODUCTS_H
#define LLAMA_PY_HALF_PRODUCTS_H

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "../reached.h"
#include "../thread_memory.h"
#include "../vectors.h"

#include <cstdint>
#include <cstring>

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))

LLAMA_PY_REACHABLE(half_products)

namespace {

template <int KN, typename D, typename V, typename TA, typename TB, typename TC> class tinyBLAS;

namespace llama_py_half {

using namespace llama_py;

#ifdef LLAMA_PY_WIDE
static constexpr int MOST_COLUMNS = 12;  // the sums of two panels of rows by these fit into the registers

static inline Floats lower32(Floats a, Floats b) { return _mm512_unpacklo_ps(a, b); }
static inline Floats upper32(Floats a, Floats b) { return _mm512_unpackhi_ps(a, b); }
static inline Floats lower64(Floats a, Floats b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
static inline Floats upper64(Floats a, Floats b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
// Four numbers of each fourth row.
static inline Floats quarter(const ggml_fp16_t * const * rows, int row, int64_t at) {
    const auto four = [&](int i) { return _mm_loadl_epi64((const __m128i *) (rows[row + i] + at)); };
    const __m128i lower = _mm_unpacklo_epi64(four(0), four(4));
    const __m128i upper = _mm_unpacklo_epi64(four(8), four(12));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1));
}
#else
static constexpr int MOST_COLUMNS = 6;

static inline Floats lower32(Floats a, Floats b) { return _mm256_unpacklo_ps(a, b); }
static inline Floats upper32(Floats a, Floats b) { return _mm256_unpackhi_ps(a, b); }
static inline Floats lower64(Floats a, Floats b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
static inline Floats upper64(Floats a, Floats b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
// Four numbers of each fourth row.
static inline Floats quarter(const ggml_fp16_t * const * rows, int row, int64_t at) {
    const auto four = [&](int i) { return _mm_loadl_epi64((const __m128i *) (rows[row + i] + at)); };
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(four(0), four(4)));
}
#endif

static constexpr int ROWS   = WIDTH;
static constexpr int PART   = 128;  // numbers that are summed one after another
static constexpr int PANELS = 2;  // that a column is multiplied with at once
// Columns that are converted at a time, and bytes of them: rows are interleaved once for these.
static constexpr int64_t LEAST_COLUMNS = 8*MOST_COLUMNS;
static constexpr int64_t NEAR          = 768*1024;

// How far apart rows of k numbers lie, once they are converted.
static inline int64_t padded(int64_t k) {
    return GGML_PAD(k, ROWS);
}

// Four numbers of each row of a panel: [number][row].
static inline void interleave_four(const ggml_fp16_t * const * rows, int64_t at, float * to) {
    const Floats a = quarter(rows, 0, at);
    const Floats b = quarter(rows, 1, at);
    const Floats c = quarter(rows, 2, at);
    const Floats d = quarter(rows, 3, at);
    const Floats ab = lower32(a, b);
    const Floats cd = lower32(c, d);
    const Floats AB = upper32(a, b);
    const Floats CD = upper32(c, d);
    store_aligned(to + 0*ROWS, lower64(ab, cd));
    store_aligned(to + 1*ROWS, upper64(ab, cd));
    store_aligned(to + 2*ROWS, lower64(AB, CD));
    store_aligned(to + 3*ROWS, upper64(AB, CD));
}

// The numbers of a row that no longer fill what is loaded at once, and zeros: nothing is read behind a row.
template <int MOST> struct Remainder {
    ggml_fp16_t numbers[MOST] = {};

    void copy(const ggml_fp16_t * from, int64_t count) { memcpy(numbers, from, count*sizeof(ggml_fp16_t)); }
};

// [number][row] of a panel of rows, padded(k) numbers; rows that are missing are the last one.
static void interleave(const ggml_fp16_t * first, int64_t stride, int count, int64_t k, float * to) {
    const ggml_fp16_t * rows[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        rows[r] = first + (r < count ? r : count - 1)*stride;
    }
    int64_t at = 0;
    for (; at + 4 <= k; at += 4) {
        interleave_four(rows, at, to + at*ROWS);
    }
    if (at < k) {
        Remainder<4> remainders[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            remainders[r].copy(rows[r] + at, k - at);
            rows[r] = remainders[r].numbers;
        }
        interleave_four(rows, 0, to + at*ROWS);
    }
}

// The numbers of a column, padded(k) of them.
static void convert(const ggml_fp16_t * numbers, int64_t k, float * to) {
    int64_t at = 0;
    for (; at + ROWS <= k; at += ROWS) {
        store_aligned(to + at, load(numbers + at));
    }
    if (at < k) {
        Remainder<ROWS> remainder;
        remainder.copy(numbers + at, k - at);
        store_aligned(to + at, load(remainder.numbers));
    }
}

// P panels by N columns: parts of the sums, which are added up, so that rounding does not grow with their length.
template <int P, int N>
static void multiply(const float * panels, const float * columns, int64_t k, float * to, int64_t to_stride, int rows) {
    const int64_t length = padded(k);
    Floats whole[P][N];
    for (int64_t from = 0; from < k; from += PART) {
        Floats sums[P][N];
        for (int p = 0; p < P; ++p) {
            for (int n = 0; n < N; ++n) {
                sums[p][n] = all(0.0f);
            }
        }
        const int64_t end = MIN(from + PART, k);
        for (int64_t i = from; i < end; ++i) {
            Floats weights[P];
            for (int p = 0; p < P; ++p) {
                weights[p] = load_aligned(panels + (p*length + i)*ROWS);
            }
            for (int n = 0; n < N; ++n) {
                const Floats number = all(columns[n*length + i]);
                for (int p = 0; p < P; ++p) {
                    sums[p][n] = fma(weights[p], number, sums[p][n]);
                }
            }
        }
        for (int p = 0; p < P; ++p) {
            for (int n = 0; n < N; ++n) {
                whole[p][n] = from ? plus(whole[p][n], sums[p][n]) : sums[p][n];
            }
        }
    }
    for (int p = 0; p < P; ++p) {
        const int count = rows - p*ROWS < ROWS ? rows - p*ROWS : ROWS;
        for (int n = 0; n < N; ++n) {
            store(to + n*to_stride + p*ROWS, whole[p][n], count);
        }
    }
}

template <int P, int N>
static void multiply(
        int count, const float * panels, const float * columns, int64_t k, float * to, int64_t to_stride, int rows) {
    if (count == N) {
        multiply<P, N>(panels, columns, k, to, to_stride, rows);
    } else if constexpr (N > 1) {
        multiply<P, N - 1>(count, panels, columns, k, to, to_stride, rows);
    }
}

} // namespace llama_py_half

template <>
class tinyBLAS<llama_py_half::ROWS, llama_py::Floats, llama_py::Floats, ggml_fp16_t, ggml_fp16_t, float> {
  public:
    tinyBLAS(const ggml_compute_params * params, int64_t k, const ggml_fp16_t * A, int64_t lda, const ggml_fp16_t * B,
             int64_t ldb, float * C, int64_t ldc)
        : thread(params->ith), threads(params->nth), k(k), rows(A), row_stride(lda), columns(B), column_stride(ldb),
          out(C), out_stride(ldc) {}

    // Each thread has a range of the m rows of the first matrix, or of the n columns if there are few rows.
    bool matmul(int64_t m, int64_t n) {
        using namespace llama_py_half;
        LLAMA_PY_REACHED(half_products);
        const int64_t panels = (m + ROWS - 1)/ROWS;
        if (panels < 8*threads && n >= 2*MOST_COLUMNS*threads) {
            multiply_part(m, 0, panels, n*thread/threads, n*(thread + 1)/threads);
        } else {
            multiply_part(m, panels*thread/threads, panels*(thread + 1)/threads, 0, n);
        }
        return true;
    }

  private:
    void multiply_part(int64_t m, int64_t first, int64_t last, int64_t column, int64_t end) const {
        using namespace llama_py_half;
        if (first == last || column == end) {
            return;
        }
        const int64_t length = padded(k);
        const int64_t most   = MIN(end - column, MAX(LEAST_COLUMNS, NEAR/(length*(int64_t) sizeof(float))));
        static thread_local llama_py::ThreadMemory memory_of_thread;
        float * interleaved = (float *) memory_of_thread.reserve((PANELS*ROWS + most)*length*sizeof(float));
        float * converted   = interleaved + PANELS*ROWS*length;
        for (; column < end; column += most) {
            const int64_t count = MIN(most, end - column);
            for (int64_t i = 0; i < count; ++i) {
                convert(columns + (column + i)*column_stride, k, converted + i*length);
            }
            for (int64_t panel = first; panel < last; panel += PANELS) {
                multiply_some(panel, MIN(panel + PANELS, last), m, column, count, interleaved, converted);
            }
        }
    }

    void multiply_some(
            int64_t from, int64_t to, int64_t m, int64_t column, int64_t count, float * interleaved,
            const float * converted) const {
        using namespace llama_py_half;
        const int64_t length = padded(k);
        for (int64_t i = from; i < to; ++i) {
            const int64_t row = i*ROWS;
            interleave(rows + row*row_stride, row_stride, (int) MIN((int64_t) ROWS, m - row), k,
                       interleaved + (i - from)*ROWS*length);
        }
        const int64_t row     = from*ROWS;
        const int64_t width   = MIN(to*ROWS, m) - row;
        const int64_t groups  = (count + MOST_COLUMNS - 1)/MOST_COLUMNS;
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t begin = count*group/groups;
            const int64_t end   = count*(group + 1)/groups;
            float * place = out + (column + begin)*out_stride + row;
            if (to - from == PANELS) {
                multiply<PANELS, MOST_COLUMNS>(
                    (int) (end - begin), interleaved, converted + begin*length, k, place, out_stride, (int) width);
            } else {
                multiply<1, MOST_COLUMNS>(
                    (int) (end - begin), interleaved, converted + begin*length, k, place, out_stride, (int) width);
            }
        }
    }

    const int thread;
    const int threads;
    const int64_t k;
    const ggml_fp16_t * const rows;
    const int64_t row_stride;
    const ggml_fp16_t * const columns;
    const int64_t column_stride;
    float * const out;
    const int64_t out_stride;
};

} // namespace

#endif
#endif
