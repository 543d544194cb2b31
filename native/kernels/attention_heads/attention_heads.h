// Included first into ggml's ops.cpp; see rule.cmake.
//
// Where several heads of a query share keys and values (grouped queries), ggml's flash attention reads and
// converts every cell anew for each of them, sums values in half precision, and takes the exponential of one
// score at a time. This reads a cell once for the rows that share it, heads of a token and neighbouring tokens,
// sums in single precision, and takes the exponentials of a block of cells together. A reply waits for memory
// more than it computes: what is needed next is fetched meanwhile, and all heads of a token pass over a block of
// cells before the next block, so that memory is read in the order in which it lies. What many rows of a prompt
// have in common is in attention_prompts.h.
//
// ggml calls the functions for rows and for tiles with int64_t, and they take int: the overload here (and in
// attention_tiles.h, which has to be included behind this) comes in between. That for rows is called with
// partials for one token, of which each thread attends to a part of the cells with all heads, one call for
// each; and without for a range of all rows, which are counted differently here: see attend_apart and
// attend_together.
//
// What a row becomes does not depend on what is computed with it, nor by how many threads: a token of a prompt, of
// a draft that is verified and of a reply gets the same bits. So rows and tiles add the same numbers in the same
// order: those of a score by lanes (``tree``), cells in blocks of 64 of those that a token attends to, and blocks
// in parts of 512 cells (``Parts``), which threads can share. Only where neighbouring tokens attend to other cells
// and not to more (a window, or conversations that share their beginning) blocks begin elsewhere.
#ifndef LLAMA_PY_ATTENTION_HEADS_H
#define LLAMA_PY_ATTENTION_HEADS_H

#include "../reached.h"
#include "../thread_memory.h"
#include "../vectors.h"
#include "common.h"
#include "ops.h"
#include "vec.h"

#include <cmath>
#include <cstring>

static void ggml_compute_forward_flash_attn_ext_f16_one_chunk(
        const ggml_compute_params * params, ggml_tensor * dst, int ir0, int ir1,
        int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride);

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define LLAMA_PY_ATTENDS

LLAMA_PY_REACHABLE(attention_heads)

#include "attention_cells.h"

namespace llama_py {

#ifdef LLAMA_PY_WIDE
static constexpr int MOST_HEADS = 4;  // whose sums fit into the registers

static inline float  first(Floats v)         { return _mm512_cvtss_f32(v); }
static inline float  greatest(Floats v)      { return _mm512_reduce_max_ps(v); }
static inline uint64_t attended(Floats mask) { return _mm512_cmp_ps_mask(mask, all(-INFINITY), _CMP_NEQ_OQ); }
static inline __m256 half(Floats v) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    return _mm256_add_ps(_mm512_castps512_ps256(v), upper);
}
#else
static constexpr int MOST_HEADS = 2;

static inline __m256 half(Floats v) { return v; }
static inline uint64_t attended(Floats mask) {
    return _mm256_movemask_ps(_mm256_cmp_ps(mask, all(-INFINITY), _CMP_NEQ_OQ));
}
static inline float  first(Floats v)  { return _mm256_cvtss_f32(v); }
static inline float  greatest(Floats v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
#endif

// The sums of four vectors, in the order of ``tree``.
static inline __m128 sums(Floats a, Floats b, Floats c, Floats d) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

static inline float sum(Floats v) {
    return _mm_cvtss_f32(sums(v, v, v, v));
}

// The exponential of a number up to 0 as that of a vector, to the bit. Seldom needed, and so not inlined.
static __attribute__((noinline)) float exponential(float x) {
    return first(ggml_v_expf(all(fmaxf(x, -1000.0f))));
}

// By what sums are multiplied when the greatest score becomes another one.
static inline float change(float before, float now) {
    return before == now ? 1.0f : exponential(before - now);
}

// Cells that are computed together: what is computed of them stays in the nearest cache.
static constexpr int BLOCK = 64;
static constexpr int AT_ONCE = 4;
// Rows that pass over the cells together, and the floats that their sums may take.
static constexpr int MOST_ROWS = 128;
static constexpr int64_t MOST_SUMS = 8192;
// Cells that are summed by themselves, and then added to those before them.
static constexpr int64_t PART = 512;

// Without a tile, rows pass over the cells in so many passes at most, and attend to them by so many masks.
static constexpr int MOST_PASSES = 32;
static constexpr int MOST_MASKS = 16;
// A line of the cache, which is what is fetched.
template <typename T> static constexpr int64_t LINE = 64/sizeof(T);

static inline void fetch(const void * from, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) {
        __builtin_prefetch((const char *) from + b);
    }
}

// Cells that some of a few rows attend to: as many as a block has, but for the last.
template <typename T> struct Cells {
    const T * keys[BLOCK];    // of the first head; those behind ``count`` can be read, too
    const T * values[BLOCK];
    alignas(64) float masks[MOST_MASKS][BLOCK];
    int count = 0;
};

// Heads of tokens, and what was summed for them so far.
struct Rows {
    int count = 0;
    int64_t width;
    float * partials = nullptr;  // or where sums of a part go: [part][head][greatest, sum, values]
    int64_t heads_of_part;
    int64_t heads[MOST_ROWS];
    const float * queries[MOST_ROWS];
    const ggml_fp16_t * masks[MOST_ROWS];
    float slopes[MOST_ROWS];
    float greatest[MOST_ROWS];
    float sum[MOST_ROWS];
    alignas(64) float sums[MOST_SUMS];

    float * values(int row) { return sums + row*width; }

    void clear(int row) {
        greatest[row] = -INFINITY;
        sum[row] = 0.0f;
        memset(values(row), 0, width*sizeof(float));
    }
};

// Rows that share keys and values: which, and how far behind those of the first head these are.
struct Pass {
    int first;
    int count;
    int64_t to_keys;
    int64_t to_values;
    int masks[MOST_HEADS];  // of which of the cells' masks each of them is
};

// What is fetched while a pass is computed: the keys of the next.
template <typename T> struct Ahead {
    const T * const * keys;  // or none
    int64_t to_keys;
};

// Cells, by the keys and values of one head.
struct Memory {
    const char * keys;
    size_t key_stride;
    size_t key_bytes;
    Widen widen_keys;
    const char * values;
    size_t value_stride;
    size_t value_bytes;
    Widen widen_values;
};

struct Scoring {
    int64_t n_keys;
    int64_t n_values;
    float scale;
    float softcap;
};

static inline bool starts_line(int64_t at, int64_t line) {
    return at%line == 0;
}

// The scores of a few cells for each row. Their values are needed next, and are fetched meanwhile.
template <int N, typename T>
static inline void score_some(
        const float * const * queries, const Cells<T> & cells, int at, const Pass & pass, int64_t n, float (*scores)[BLOCK]) {
    const T * const * keys   = cells.keys + at;
    const T * const * values = cells.values + at;
    Floats sum[N][AT_ONCE];
    for (int r = 0; r < N; ++r) {
        for (int c = 0; c < AT_ONCE; ++c) {
            sum[r][c] = all(0.0f);
        }
    }
    for (int64_t d = 0; d < n; d += WIDTH) {
        Floats key[AT_ONCE];
        for (int c = 0; c < AT_ONCE; ++c) {
            key[c] = load(keys[c] + pass.to_keys + d);
        }
        if (starts_line(d, LINE<T>)) {
            for (int c = 0; c < AT_ONCE; ++c) {
                __builtin_prefetch(values[c] + pass.to_values + d);
            }
        }
        for (int r = 0; r < N; ++r) {
            const Floats query = load(queries[r] + d);
            for (int c = 0; c < AT_ONCE; ++c) {
                sum[r][c] = fma(key[c], query, sum[r][c]);
            }
        }
    }
    for (int r = 0; r < N; ++r) {
        _mm_storeu_ps(scores[r] + at, sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
    }
}

// Scores become weights, by the greatest score so far; returns by what the sums so far are multiplied.
static inline float weigh(float * scores, int padded, float & greatest_so_far, float & sum_so_far) {
    Floats most = all(-INFINITY);
    for (int c = 0; c < padded; c += WIDTH) {
        most = greater(most, load(scores + c));
    }
    const float before = greatest_so_far;
    const float now = fmaxf(before, greatest(most));
    if (now == -INFINITY) {
        memset(scores, 0, padded*sizeof(float));
        return 1.0f;
    }
    Floats total = all(0.0f);
    for (int c = 0; c < padded; c += WIDTH) {
        const Floats difference = minus(load(scores + c), all(now));
        const Floats weight = ggml_v_expf(greater(difference, all(-1000.0f)));  // 0 where it is masked
        store(scores + c, weight);
        total = plus(total, weight);
    }
    const float factor = change(before, now);
    greatest_so_far = now;
    sum_so_far = fmaf(sum_so_far, factor, sum(total));
    return factor;
}

// Adds WIDTH*W values of each cell, weighted, to those of each row; the keys of the next pass are fetched meanwhile.
template <int N, int W, typename T>
static inline void add_values(
        float * const * into, const Cells<T> & cells, int64_t to_values, const float (*weights)[BLOCK],
        const float * factors, int64_t from, const Ahead<T> & ahead) {
    const bool fetches = ahead.keys && starts_line(from, LINE<T>);
    Floats sum[N][W];
    for (int r = 0; r < N; ++r) {
        for (int w = 0; w < W; ++w) {
            sum[r][w] = times(load(into[r] + from + w*WIDTH), all(factors[r]));
        }
    }
    for (int c = 0; c < cells.count; ++c) {
        Floats value[W];
        for (int w = 0; w < W; ++w) {
            value[w] = load(cells.values[c] + to_values + from + w*WIDTH);
            if (fetches && starts_line(w*WIDTH, LINE<T>)) {
                __builtin_prefetch(ahead.keys[c] + ahead.to_keys + from + w*WIDTH);
            }
        }
        for (int r = 0; r < N; ++r) {
            const Floats weight = all(weights[r][c]);
            for (int w = 0; w < W; ++w) {
                sum[r][w] = fma(value[w], weight, sum[r][w]);
            }
        }
    }
    for (int r = 0; r < N; ++r) {
        for (int w = 0; w < W; ++w) {
            store(into[r] + from + w*WIDTH, sum[r][w]);
        }
    }
}

template <int N, typename T>
static void attend(Rows & rows, const Pass & pass, const Cells<T> & cells, const Scoring & scoring, const Ahead<T> & ahead) {
    alignas(64) float scores[N][BLOCK];
    float factors[N];
    float * into[N];
    const int count = cells.count;
    const int padded = (count + WIDTH - 1)/WIDTH*WIDTH;
    for (int c = 0; c < count; c += AT_ONCE) {
        score_some<N>(rows.queries + pass.first, cells, c, pass, scoring.n_keys, scores);
    }
    for (int r = 0; r < N; ++r) {
        const int row = pass.first + r;
        const float * mask = rows.masks[row] ? cells.masks[pass.masks[r]] : nullptr;
        const Floats slope = all(rows.slopes[row]);
        float * score = scores[r];
        for (int c = 0; c < padded; c += WIDTH) {
            store(score + c, times(load(score + c), all(scoring.scale)));
        }
        for (int c = 0; scoring.softcap != 0.0f && c < count; ++c) {
            score[c] = scoring.softcap*tanhf(score[c]);
        }
        for (int c = 0; mask && c < padded; c += WIDTH) {
            store(score + c, fma(slope, load(mask + c), load(score + c)));
        }
        for (int c = count; c < padded; ++c) {
            score[c] = -INFINITY;
        }
        factors[r] = weigh(score, padded, rows.greatest[row], rows.sum[row]);
        into[r] = rows.values(row);
    }
    int64_t from = 0;
    for (; from + 4*WIDTH <= scoring.n_values; from += 4*WIDTH) {
        add_values<N, 4>(into, cells, pass.to_values, scores, factors, from, ahead);
    }
    for (; from < scoring.n_values; from += WIDTH) {
        add_values<N, 1>(into, cells, pass.to_values, scores, factors, from, ahead);
    }
}

template <typename T>
static void attend_some(Rows & rows, const Pass & pass, const Cells<T> & cells, const Scoring & scoring, const Ahead<T> & ahead) {
    switch (pass.count) {
        case 1: attend<1>(rows, pass, cells, scoring, ahead); break;
        case 2: attend<2>(rows, pass, cells, scoring, ahead); break;
#ifdef LLAMA_PY_WIDE
        case 3: attend<3>(rows, pass, cells, scoring, ahead); break;
        case 4: attend<4>(rows, pass, cells, scoring, ahead); break;
#endif
    }
}

// The mask of a token for a block of cells as numbers, and a bit for each cell that it attends to.
static inline uint64_t read_mask(const ggml_fp16_t * mask, int count, float * values) {
    alignas(64) ggml_fp16_t whole[BLOCK];
    if (count < BLOCK) {
        memset(whole, 0, sizeof(whole));
        memcpy(whole, mask, count*sizeof(ggml_fp16_t));
        mask = whole;
    }
    uint64_t bits = 0;
    for (int c = 0; c < BLOCK; c += WIDTH) {
        const Floats value = load(mask + c);
        store(values + c, value);
        bits |= attended(value) << c;
    }
    return count < BLOCK ? bits & ((1ull << count) - 1) : bits;
}

// Whether a token attends to none of the cells of a whole block, by the bits of minus infinity: those of other
// conversations in the same buffer, mostly. What its mask says of the next block is fetched meanwhile: the mask of
// each token is in a place of its own, far from the others.
static inline bool attends_to_none(const ggml_fp16_t * mask) {
    __builtin_prefetch(mask + BLOCK);
    __builtin_prefetch(mask + BLOCK + BLOCK/2);
    const __m256i hidden = _mm256_set1_epi16((short) 0xfc00);
    __m256i same = _mm256_set1_epi16(-1);
    for (int c = 0; c < BLOCK; c += 16) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (mask + c));
        same = _mm256_and_si256(same, _mm256_cmpeq_epi16(bits, hidden));
    }
    return _mm256_movemask_epi8(same) == -1;
}

// Picks those of the cells [next, end) that any of a few tokens attends to.
template <typename T> struct Picking {
    Memory memory;
    int64_t next;
    int64_t end;
    int tokens = 0;
    const ggml_fp16_t * masks[MOST_MASKS];

    uint64_t bits = 0;  // of [start, start + BLOCK), which were not picked yet
    int64_t start = 0;
    alignas(64) float numbers[MOST_MASKS][BLOCK];

    // The next cells that any attends to, if there are more.
    bool look() {
        while (!bits && next < end) {
            const int count = (int) MIN((int64_t) BLOCK, end - next);
            start = next;
            next += count;
            bits = tokens ? 0 : count < BLOCK ? (1ull << count) - 1 : ~0ull;
            bool none = count == BLOCK;
            for (int t = 0; t < tokens && none; ++t) {
                none = attends_to_none(masks[t] + start);
            }
            for (int t = 0; t < tokens && !none; ++t) {
                bits |= read_mask(masks[t] + start, count, numbers[t]);
            }
        }
        return bits;
    }

    void point(Cells<T> & cells, int to, int c) const {
        cells.keys[to]   = (const T *) (memory.keys + (start + c)*memory.key_stride);
        cells.values[to] = (const T *) (memory.values + (start + c)*memory.value_stride);
    }

    void take_block(Cells<T> & cells) {
        for (int c = 0; c < BLOCK; ++c) {
            point(cells, c, c);
        }
        memcpy(cells.masks, numbers, tokens*sizeof(numbers[0]));
        cells.count = BLOCK;
        bits = 0;
    }

    void take_some(Cells<T> & cells) {
        for (; bits && cells.count < BLOCK; bits &= bits - 1) {
            const int c = __builtin_ctzll(bits);
            point(cells, cells.count, c);
            for (int t = 0; t < tokens; ++t) {
                cells.masks[t][cells.count] = numbers[t][c];
            }
            ++cells.count;
        }
    }

    void pick(Cells<T> & cells) {
        cells.count = 0;
        while (cells.count < BLOCK && look()) {
            if (bits == ~0ull && cells.count == 0) {  // all of a block, as most are
                take_block(cells);
            } else {
                take_some(cells);
            }
        }
        for (int c = cells.count; c && c < BLOCK; ++c) {
            cells.keys[c]   = cells.keys[c - 1];
            cells.values[c] = cells.values[c - 1];
        }
    }
};

static float slope_of(const ggml_tensor * dst, uint32_t head) {
    float max_bias;
    memcpy(&max_bias, (const float *) dst->op_params + 1, sizeof(float));
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    const uint32_t n_heads = dst->src[0]->ne[2];
    const uint32_t log2_of = 1u << (uint32_t) floor(log2(n_heads));
    const float m0 = powf(2.0f, -max_bias/log2_of);
    const float m1 = powf(2.0f, -(max_bias/2.0f)/log2_of);
    return head < log2_of ? powf(m0, head + 1) : powf(m1, 2*(head - log2_of) + 1);
}

static const ggml_fp16_t * mask_of(const ggml_tensor * dst, int64_t token, int64_t batch) {
    const ggml_tensor * mask = dst->src[3];
    const char * data = (const char *) mask->data + token*mask->nb[1] + (batch%mask->ne[3])*mask->nb[3];
    return (const ggml_fp16_t *) data;
}

static void add_row(const ggml_tensor * dst, int64_t token, int64_t head, int64_t batch, Rows & rows) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * mask = dst->src[3];
    const int row = rows.count++;
    rows.width         = dst->src[2]->ne[0];
    rows.heads[row]    = head;
    rows.queries[row]  = (const float *) ((const char *) q->data + token*q->nb[1] + head*q->nb[2] + batch*q->nb[3]);
    rows.masks[row]    = nullptr;
    if (mask) {
        rows.masks[row] = mask_of(dst, token, batch);
    }
    rows.slopes[row]   = slope_of(dst, head);
    rows.clear(row);
}

static Scoring scoring_of(const ggml_tensor * dst) {
    Scoring scoring = {dst->src[1]->ne[0], dst->src[2]->ne[0], 1.0f, 0.0f};
    memcpy(&scoring.scale,   (const float *) dst->op_params + 0, sizeof(float));
    memcpy(&scoring.softcap, (const float *) dst->op_params + 2, sizeof(float));
    if (scoring.softcap != 0.0f) {
        scoring.scale /= scoring.softcap;
    }
    return scoring;
}

static int64_t heads_that_share(const ggml_tensor * dst) {
    return dst->src[0]->ne[2]/dst->src[1]->ne[2];
}

// The keys and values that heads share, the first of which is ``head``.
static Memory memory_of(const ggml_tensor * dst, int64_t head, int64_t batch) {
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    const int64_t group = head/heads_that_share(dst);
    const int64_t other = batch/(dst->src[0]->ne[3]/k->ne[3]);
    return {
        (const char *) k->data + group*k->nb[2] + other*k->nb[3], k->nb[1],
        ggml_row_size(k->type, k->ne[0]), widens(k->type),
        (const char *) v->data + group*v->nb[2] + other*v->nb[3], v->nb[1],
        ggml_row_size(v->type, v->ne[0]), widens(v->type),
    };
}

// What a few rows do together.
template <typename T> struct Walk {
    int end;  // the row behind the last of them
    int count = 0;
    Pass passes[MOST_PASSES];
    Picking<T> picking;
};

// Rows from ``first`` on up to ``last``, as many as fit: which of them pass together, and by which masks, which are those of the
// tokens that cells are picked for.
template <typename T>
static void plan(const ggml_tensor * dst, const Rows & rows, int first, int last, Walk<T> & walk) {
    const int64_t shared = heads_that_share(dst);
    int & tokens = walk.picking.tokens;
    for (walk.end = first; walk.end < last; ++walk.end) {
        const int row = walk.end;
        const int64_t group = rows.heads[row]/shared;
        const bool same_group = row > first && rows.heads[row - 1]/shared == group;
        const bool same_mask  = row > first && rows.masks[row - 1] == rows.masks[row];
        const bool new_pass = !same_group || walk.passes[walk.count - 1].count == MOST_HEADS;
        const bool new_mask = rows.masks[row] && !same_mask;
        if ((new_pass && walk.count == MOST_PASSES) || (new_mask && tokens == MOST_MASKS)) {
            return;
        }
        if (new_pass) {
            const int64_t to_keys   = group*dst->src[1]->nb[2]/sizeof(T);
            const int64_t to_values = group*dst->src[2]->nb[2]/sizeof(T);
            walk.passes[walk.count++] = {row, 0, to_keys, to_values, {}};
        }
        if (new_mask) {
            walk.picking.masks[tokens++] = rows.masks[row];
        }
        Pass & pass = walk.passes[walk.count - 1];
        pass.masks[pass.count++] = tokens - 1;
    }
}

// Adds what a part of the cells gave a row to what those before it did.
static void add_part(
        float & greatest_so_far, float & sum_so_far, float * values_so_far, float greatest, float sum,
        const float * values, int64_t width) {
    if (greatest == -INFINITY) {
        return;  // it attends to none of them
    }
    if (greatest_so_far == -INFINITY) {
        greatest_so_far = greatest;
        sum_so_far = sum;
        memcpy(values_so_far, values, width*sizeof(float));
        return;
    }
    const float now = fmaxf(greatest_so_far, greatest);
    const float before  = change(greatest_so_far, now);
    const float of_part = change(greatest, now);
    greatest_so_far = now;
    sum_so_far = fmaf(sum_so_far, before, sum*of_part);
    for (int64_t d = 0; d < width; d += WIDTH) {
        const Floats added = times(load(values + d), all(of_part));
        store(values_so_far + d, fma(load(values_so_far + d), all(before), added));
    }
}

// The parts of the cells that rows [first, end) pass over: what they give is added up, or kept for whoever does that.
class Parts {
  public:
    Parts(Rows & rows, int first, int end) : rows(rows), first(first), end(end) {}

    // Before each block of cells.
    void begin_block() {
        if (blocks == PART/BLOCK) {
            end_part();
            for (int row = first; row < end; ++row) {
                rows.clear(row);
            }
            blocks = 0;
        }
        ++blocks;
    }

    // Behind the last one.
    void finish() {
        if (rows.partials || part) {
            end_part();
        }
        for (int row = first; part && !rows.partials && row < end; ++row) {
            rows.greatest[row] = greatest[row];
            rows.sum[row]      = sum[row];
            memcpy(rows.values(row), values(row), rows.width*sizeof(float));
        }
    }

  private:
    Rows & rows;
    int first;
    int end;
    int64_t blocks = 0;
    int64_t part = 0;
    float greatest[MOST_ROWS];
    float sum[MOST_ROWS];
    alignas(64) float sums[MOST_SUMS];

    float * values(int row) { return sums + row*rows.width; }

    void end_part() {
        for (int row = first; row < end; ++row) {
            if (rows.partials) {
                store_part(row);
                continue;
            }
            if (part == 0) {
                greatest[row] = -INFINITY;
                sum[row] = 0.0f;
                memset(values(row), 0, rows.width*sizeof(float));
            }
            add_part(greatest[row], sum[row], values(row), rows.greatest[row], rows.sum[row], rows.values(row), rows.width);
        }
        ++part;
    }

    void store_part(int row) {
        float * partial = rows.partials + (part*rows.heads_of_part + rows.heads[row])*(2 + rows.width);
        partial[0] = rows.greatest[row];
        partial[1] = rows.sum[row];
        memcpy(partial + 2, rows.values(row), rows.width*sizeof(float));
    }
};

} // namespace llama_py

#include "attention_prompts.h"

namespace llama_py {

template <typename T>
static void fetch_keys(const Cells<T> & cells, const Pass & pass, int64_t n) {
    for (int c = 0; c < cells.count; ++c) {
        fetch(cells.keys[c] + pass.to_keys, n*(int64_t) sizeof(T));
    }
}

// Each block of cells passes by all rows while it is near.
template <typename T>
static void attend_in_blocks(Walk<T> & walk, const Scoring & scoring, Rows & rows) {
    const Pass * passes = walk.passes;
    Parts parts(rows, passes[0].first, walk.end);
    Cells<T> blocks[2];
    walk.picking.pick(blocks[0]);
    fetch_keys(blocks[0], passes[0], scoring.n_keys);
    for (int i = 0; blocks[i].count; i = !i) {
        const Cells<T> & cells = blocks[i];
        Cells<T> & following = blocks[!i];
        walk.picking.pick(following);
        parts.begin_block();
        for (int p = 0; p < walk.count - 1; ++p) {
            attend_some<T>(rows, passes[p], cells, scoring, {cells.keys, passes[p + 1].to_keys});
        }
        const Ahead<T> ahead = {following.count ? following.keys : nullptr, passes[0].to_keys};
        attend_some(rows, passes[walk.count - 1], cells, scoring, ahead);
    }
    parts.finish();
}

template <typename T>
static void attend_to(
        const ggml_tensor * dst, int64_t batch, int64_t from, int64_t to, const Scoring & scoring, Rows & rows) {
    for (int first = 0; first < rows.count;) {
        Walk<T> walk;
        walk.picking.memory = memory_of(dst, 0, batch);
        walk.picking.next = from;
        walk.picking.end  = to;
        plan(dst, rows, first, rows.count, walk);
        attend_in_blocks(walk, scoring, rows);
        first = walk.end;
    }
}

// Cells of any type, widened a block at a time for the rows that share them.
struct Widened {
    Cells<uint8_t> cells;
    Cells<float> numbers;
    alignas(64) float keys[BLOCK*WIDEST];
    alignas(64) float values[BLOCK*WIDEST];

    void widen(const Memory & memory, const Scoring & scoring, int tokens) {
        for (int c = 0; c < BLOCK; ++c) {  // those behind the last one are read, and not used
            const int64_t last = MIN(c, cells.count - 1);
            numbers.keys[c]   = keys + last*scoring.n_keys;
            numbers.values[c] = values + last*scoring.n_values;
        }
        for (int c = 0; c < cells.count; ++c) {
            if (c + FETCHED < cells.count) {
                fetch(cells.keys[c + FETCHED], memory.key_bytes);
                fetch(cells.values[c + FETCHED], memory.value_bytes);
            }
            memory.widen_keys((const char *) cells.keys[c], scoring.n_keys, keys + c*scoring.n_keys);
            memory.widen_values((const char *) cells.values[c], scoring.n_values, values + c*scoring.n_values);
        }
        memcpy(numbers.masks, cells.masks, tokens*sizeof(cells.masks[0]));
        numbers.count = cells.count;
    }
};

// The rows of one head of the cells.
static int rows_of_group(const ggml_tensor * dst, const Rows & rows, int first) {
    const int64_t shared = heads_that_share(dst);
    int end = first + 1;
    while (end < rows.count && rows.heads[end]/shared == rows.heads[first]/shared) {
        ++end;
    }
    return end;
}

static void attend_widened(
        const ggml_tensor * dst, int64_t batch, int64_t from, int64_t to, const Scoring & scoring, Rows & rows) {
    Widened widened;
    for (int first = 0; first < rows.count;) {
        Walk<uint8_t> walk;
        walk.picking.memory = memory_of(dst, rows.heads[first], batch);
        walk.picking.next = from;
        walk.picking.end  = to;
        plan(dst, rows, first, rows_of_group(dst, rows, first), walk);
        Parts parts(rows, first, walk.end);
        for (walk.picking.pick(widened.cells); widened.cells.count; walk.picking.pick(widened.cells)) {
            widened.widen(walk.picking.memory, scoring, walk.picking.tokens);
            parts.begin_block();
            for (int p = 0; p < walk.count; ++p) {
                Pass pass = walk.passes[p];
                pass.to_keys = pass.to_values = 0;  // these cells are of one head
                attend_some<float>(rows, pass, widened.numbers, scoring, {nullptr, 0});
            }
        }
        parts.finish();
        first = walk.end;
    }
}

// Whether cells have to be widened before they are computed with.
static bool are_widened(const ggml_tensor * dst) {
    const ggml_type type = dst->src[1]->type;
    return type != dst->src[2]->type || (type != GGML_TYPE_F16 && type != GGML_TYPE_F32);
}

static void attend_to_cells(const ggml_tensor * dst, int64_t batch, int64_t from, int64_t to, Rows & rows) {
    const Scoring scoring = scoring_of(dst);
    if (rows_of_group(dst, rows, 0) == rows.count && fits_tile(rows, scoring)) {
        attend_as_tile(rows, from, to, memory_of(dst, rows.heads[0], batch), scoring);
    } else if (are_widened(dst)) {
        attend_widened(dst, batch, from, to, scoring, rows);
    } else if (dst->src[1]->type == GGML_TYPE_F16) {
        attend_to<ggml_fp16_t>(dst, batch, from, to, scoring, rows);
    } else {
        attend_to<float>(dst, batch, from, to, scoring, rows);
    }
}

// What belongs to each head of its own besides the cells.
static void add_sink(const ggml_tensor * dst, int64_t head, int row, Rows & rows) {
    const ggml_tensor * sinks = dst->src[4];
    if (sinks) {
        const float sink   = ((const float *) sinks->data)[head];
        const float now    = fmaxf(rows.greatest[row], sink);
        const float factor = expf(rows.greatest[row] - now);
        rows.sum[row] = rows.sum[row]*factor + expf(sink - now);
        rows.greatest[row] = now;
        ggml_vec_scale_f32(rows.width, rows.values(row), factor);
    }
}

static int64_t most_rows(const ggml_tensor * dst) {
    return MIN((int64_t) MOST_ROWS, MOST_SUMS/dst->src[2]->ne[0]);
}

// As many heads of a token as are computed at once, from ``head`` on: where many share keys and values, those alone
// fill a tile.
static int64_t heads_at_once(const ggml_tensor * dst, int64_t head) {
    const int64_t shared = heads_that_share(dst);
    const int64_t end = shared >= WIDTH ? (head/shared + 1)*shared : dst->src[0]->ne[2];
    return MIN(end - head, most_rows(dst));
}

// Whether a token attends to much the same cells as the one before it: the next one of a prompt, and not one of
// another conversation. By all cells: what is computed must not depend on where these lie.
static bool goes_on(const ggml_tensor * dst, int64_t token, int64_t batch) {
    if (!dst->src[3]) {
        return true;
    }
    const int64_t cells = dst->src[1]->ne[1];
    const ggml_fp16_t * before = mask_of(dst, token - 1, batch);
    const ggml_fp16_t * now    = mask_of(dst, token, batch);
    int64_t both = 0;
    int64_t one  = 0;
    int64_t c = 0;
    for (; c + BLOCK <= cells; c += BLOCK) {
        if (2*both >= one + cells - c) {  // whatever the others say
            return true;
        }
        const uint64_t a = ~equal_bits(before + c, 0xfc00);
        const uint64_t b = ~equal_bits(now + c, 0xfc00);
        both += __builtin_popcountll(a & b);
        one  += __builtin_popcountll(a ^ b);
    }
    for (; c < cells; ++c) {
        both += before[c] != 0xfc00 && now[c] != 0xfc00;
        one  += (before[c] != 0xfc00) != (now[c] != 0xfc00);
    }
    return 2*both >= one;
}

// Whether a step has a prompt, at its beginning or at its end, and not only replies.
static bool has_prompt(const ggml_tensor * dst) {
    const int64_t tokens = dst->src[0]->ne[1];
    return tokens > 1 && (goes_on(dst, 1, 0) || goes_on(dst, tokens - 1, 0));
}

static bool can_attend(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * k    = dst->src[1];
    const ggml_tensor * v    = dst->src[2];
    const ggml_tensor * mask = dst->src[3];
    return !params->use_ref && q->type == GGML_TYPE_F32
        && (!are_widened(dst) || (widens(k->type) && widens(v->type) && k->ne[0] <= WIDEST && v->ne[0] <= WIDEST))
        && k->ne[0]%WIDTH == 0 && v->ne[0]%WIDTH == 0 && v->ne[0] <= MOST_SUMS
        && k->ne[2] == v->ne[2] && q->ne[2]%k->ne[2] == 0
        && (!mask || mask->ne[2] == 1);
}

// The cells that one token attends to.
struct Attended {
    const ggml_fp16_t * mask;  // or none: all of them
    int64_t cells;

    uint64_t bits(int64_t cell) const {
        const int64_t count = MIN((int64_t) BLOCK, cells - cell);
        if (mask && count == BLOCK) {
            return ~equal_bits(mask + cell, 0xfc00);
        }
        uint64_t bits = 0;
        for (int64_t c = 0; c < count; ++c) {
            bits |= (uint64_t) (!mask || mask[cell + c] != 0xfc00) << c;
        }
        return bits;
    }

    int64_t count() const {
        int64_t count = 0;
        for (int64_t cell = 0; cell < cells; cell += BLOCK) {
            count += __builtin_popcountll(bits(cell));
        }
        return count;
    }

    // Where the cell lies before which it attends to so many more, from a cell on.
    int64_t behind(int64_t cell, int64_t count) const {
        for (; cell < cells; cell += BLOCK) {
            uint64_t left = bits(cell);
            const int64_t here = __builtin_popcountll(left);
            if (count < here) {
                for (; count; --count) {
                    left &= left - 1;
                }
                return cell + __builtin_ctzll(left);
            }
            count -= here;
        }
        return cells;
    }
};

// Heads [head, end) of one token over the cells [from, to): what each part of them gives.
static void attend_heads(
        const ggml_tensor * dst, int64_t head, int64_t end, int64_t from, int64_t to, float * partials) {
    Rows rows;
    rows.partials = partials;
    rows.heads_of_part = dst->src[0]->ne[2];
    for (; head < end; head += rows.count) {
        const int64_t count = MIN(end - head, heads_at_once(dst, head));
        rows.count = 0;
        while (rows.count < count) {
            add_row(dst, 0, head + rows.count, 0, rows);
        }
        attend_to_cells(dst, 0, from, to, rows);
    }
}

// Threads that ggml calls, whatever the number of cells is, from as many on as it divides at all (512): it gives
// each ceil(cells/nth) of them, and with many threads nothing is left for the last ones.
static int64_t threads_called(int64_t nth) {
    return (512*nth + nth + 511)/(nth + 512);
}

// How threads share the heads of one token. A piece is some of the heads over a part of the cells; pieces are
// counted part by part, and each thread does some that follow each other.
class Shares {
  public:
    Shares(const ggml_tensor * dst, int64_t count, int64_t threads)
        : count(count), threads(threads), heads(dst->src[0]->ne[2]) {
        const int64_t shared = heads_that_share(dst);
        const int64_t groups = heads/shared;
        // Heads that share cells are divided only where that makes shares more equal.
        pieces = groups;
        for (int64_t divided = 2; 10*longest()*threads > 11*count*pieces && divided <= shared; divided *= 2) {
            pieces = groups*divided;
        }
        if (10*longest()*threads > 11*count*pieces) {
            pieces = heads;
        }
    }

    int64_t parts() const { return (count + PART - 1)/PART; }
    int64_t first(int64_t thread) const {
        const int64_t before = thread*count*pieces/threads;
        const int64_t part   = before/(PART*pieces);
        const int64_t cells  = of_part(part);
        return part*pieces + (cells ? (before - part*PART*pieces + cells/2)/cells : 0);
    }
    int64_t part_of(int64_t piece) const { return piece/pieces; }
    int64_t head_of(int64_t piece, int64_t more = 0) const { return (piece%pieces + more)*heads/pieces; }
    int64_t piece_of(int64_t head) const { return ((head + 1)*pieces + heads - 1)/heads - 1; }
    int64_t pieces_of_part() const { return pieces; }
    int64_t cells_of(int64_t part, int64_t parts) const { return MIN(count, (part + parts)*PART) - part*PART; }
    // From a piece on, those that are of the same part, or whole parts.
    int64_t behind_alike(int64_t piece, int64_t end) const {
        const int64_t whole = (end - piece)/pieces*pieces;
        return piece%pieces == 0 && whole ? piece + whole : MIN(end, (piece/pieces + 1)*pieces);
    }

  private:
    int64_t count;
    int64_t threads;
    int64_t heads;
    int64_t pieces;

    int64_t of_part(int64_t part) const { return MIN(PART, MAX(0, count - part*PART)); }

    int64_t cells_before(int64_t piece) const {
        return piece/pieces*PART*pieces + piece%pieces*of_part(piece/pieces);
    }
    int64_t longest() const {
        int64_t most = 0;
        for (int64_t thread = 0; thread < threads; ++thread) {
            most = MAX(most, cells_before(first(thread + 1)) - cells_before(first(thread)));
        }
        return most;
    }
};

// What a thread has computed of one token, for whoever adds it up: in the place of ggml's partials of the first head.
struct Done {
    const float * partials;  // [part][head][stride], from the thread's first part on
    int64_t count;           // cells that the token attends to
};

static int64_t stride_of(const ggml_tensor * dst) {
    return 2 + dst->src[2]->ne[0];
}

// The share of one thread of the heads of one token. ggml gives each thread a range of cells. What a token attends to
// may lie in one of them, or in several: so they are shared out by how many it attends to.
static void attend_in_part(const ggml_compute_params * params, const ggml_tensor * dst, int64_t first, float * partials) {
    LLAMA_PY_REACHED(attention_heads);
    const int64_t threads = threads_called(params->nth);
    if (first > 0 || params->ith >= threads) {
        return;  // it was computed with the first head
    }
    const ggml_tensor * mask = dst->src[3];
    const int64_t heads  = dst->src[0]->ne[2];
    const int64_t stride = stride_of(dst);
    const Attended attended = {mask ? mask_of(dst, 0, 0) : nullptr, dst->src[1]->ne[1]};
    const int64_t count = attended.count();
    const Shares shares(dst, count, threads);
    const int64_t end = shares.first(params->ith + 1);
    int64_t piece = shares.first(params->ith);
    const int64_t first_part = shares.part_of(piece);
    const int64_t parts = piece < end ? shares.part_of(end - 1) + 1 - first_part : 1;

    static thread_local ThreadMemory memory_of_thread;
    float * memory = (float *) memory_of_thread.reserve(parts*heads*stride*sizeof(float));
    const Done done = {memory, count};
    memcpy(partials, &done, sizeof(done));

    int64_t part = 0;
    int64_t from = 0;
    for (int64_t behind; piece < end; piece = behind) {
        behind = shares.behind_alike(piece, end);
        const int64_t whole = MAX(1, (behind - piece)/shares.pieces_of_part());
        from = attended.behind(from, (shares.part_of(piece) - part)*PART);
        part = shares.part_of(piece);
        const int64_t to = attended.behind(from, shares.cells_of(part, whole));
        float * into = memory + (part - first_part)*heads*stride;
        attend_heads(dst, shares.head_of(piece), shares.head_of(behind - 1, 1), from, to, into);
    }
}

static void finish_row(const ggml_tensor * dst, int64_t token, int64_t batch, int row, Rows & rows) {
    const int64_t head = rows.heads[row];
    add_sink(dst, head, row, rows);
    const float sum = rows.sum[row];
    ggml_vec_scale_f32(rows.width, rows.values(row), sum == 0.0f ? 0.0f : 1.0f/sum);
    char * out = (char *) dst->data + head*dst->nb[1] + token*dst->nb[2] + batch*dst->nb[3];
    memcpy(out, rows.values(row), rows.width*sizeof(float));
}

// Adds up what the threads have computed of one token, part by part; each of them does some of the heads.
static void add_parts(const ggml_compute_params * params, const ggml_tensor * dst) {
    const int64_t heads   = dst->src[0]->ne[2];
    const int64_t stride  = stride_of(dst);
    const int64_t threads = threads_called(params->nth);
    // As ggml's function of the same name as the overload below has it.
    const int64_t before  = params->nth*(dst->src[1]->ne[0] + 2*dst->src[2]->ne[0] + CACHE_LINE_SIZE_F32);
    const float * slots   = (const float *) params->wdata + before;
    const auto done_by = [&](int64_t thread) {
        Done done;
        memcpy(&done, slots + thread*stride, sizeof(done));
        return done;
    };
    const Shares shares(dst, done_by(0).count, threads);
    Rows rows;
    for (int64_t head = params->ith; head < heads; head += params->nth) {
        rows.count = 0;
        add_row(dst, 0, head, 0, rows);
        int64_t thread = 0;
        for (int64_t part = 0; part < shares.parts(); ++part) {
            const int64_t piece = part*shares.pieces_of_part() + shares.piece_of(head);
            while (shares.first(thread + 1) <= piece) {
                ++thread;
            }
            const int64_t of_thread = part - shares.part_of(shares.first(thread));
            const float * partial = done_by(thread).partials + (of_thread*heads + head)*stride;
            add_part(rows.greatest[0], rows.sum[0], rows.values(0), partial[0], partial[1], partial + 2, rows.width);
        }
        finish_row(dst, 0, 0, 0, rows);
    }
}

// Rows counted token by token: all heads of the first, then those of the next. Where cells have to be widened, and
// there is enough to do for each thread, heads that share them are not divided: whoever has the first does all.
static void attend_apart(const ggml_compute_params * params, const ggml_tensor * dst, int64_t index, int64_t end) {
    const int64_t heads  = dst->src[0]->ne[2];
    const int64_t tokens = dst->src[0]->ne[1];
    const int64_t shared = heads_that_share(dst);
    if (are_widened(dst) && heads/shared*tokens*dst->src[0]->ne[3] >= params->nth) {
        index = (index + shared - 1)/shared*shared;
        end   = (end + shared - 1)/shared*shared;
    }
    Rows rows;
    for (; index < end; index += rows.count) {
        const int64_t head  = index%heads;
        const int64_t token = index/heads%tokens;
        const int64_t batch = index/heads/tokens;
        const int64_t count = MIN(end - index, heads_at_once(dst, head));
        rows.count = 0;
        while (rows.count < count) {
            add_row(dst, token, head + rows.count, batch, rows);
        }
        attend_to_cells(dst, batch, 0, dst->src[1]->ne[1], rows);
        for (int row = 0; row < rows.count; ++row) {
            finish_row(dst, token, batch, row, rows);
        }
    }
}

// Rows counted by what they share: heads that share keys and values, of one token and then of the next; and then
// those that share others. Tokens of two conversations are not computed together.
static void attend_together(const ggml_tensor * dst, int64_t index, int64_t end) {
    const int64_t shared   = heads_that_share(dst);
    const int64_t of_group = shared*dst->src[0]->ne[1];
    const int64_t groups   = dst->src[1]->ne[2];
    Rows rows;
    for (; index < end; index += rows.count) {
        const int64_t group = index/of_group;
        const int64_t batch = group/groups;
        const int64_t head  = group%groups*shared;
        const int64_t last  = MIN(MIN(end, (group + 1)*of_group), index + most_rows(dst));
        rows.count = 0;
        for (int64_t i = index; i < last; ++i) {
            const int64_t token = i%of_group/shared;
            if (i > index && i%shared == 0 && !goes_on(dst, token, batch)) {
                break;
            }
            add_row(dst, token, head + i%shared, batch, rows);
        }
        attend_to_cells(dst, batch, 0, dst->src[1]->ne[1], rows);
        for (int row = 0; row < rows.count; ++row) {
            finish_row(dst, (index + row)%of_group/shared, batch, row, rows);
        }
    }
}

static void attend_whole(const ggml_compute_params * params, const ggml_tensor * dst, int64_t index, int64_t end) {
    LLAMA_PY_REACHED(attention_heads);
    if (has_prompt(dst)) {
        attend_together(dst, index, end);
    } else {
        attend_apart(params, dst, index, end);
    }
}

} // namespace llama_py

static void ggml_compute_forward_flash_attn_ext_f16_one_chunk(
        const ggml_compute_params * params, ggml_tensor * dst, int64_t ir0, int64_t ir1,
        int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride) {
    if (!llama_py::can_attend(params, dst)) {
        ggml_compute_forward_flash_attn_ext_f16_one_chunk(
            params, dst, (int) ir0, (int) ir1, ic_start, ic_end, partials, partial_stride);
    } else if (partials) {
        llama_py::attend_in_part(params, dst, ir0, partials);
    } else {
        llama_py::attend_whole(params, dst, ir0, ir1);
    }
}

// ggml adds up a range of cells for each thread, with an int64_t for their number.
static void ggml_flash_attn_ext_reduce_partials(
        const ggml_compute_params * params, ggml_tensor * dst, const int64_t n_chunks, const int64_t chunk_size);

static void ggml_flash_attn_ext_reduce_partials(
        const ggml_compute_params * params, ggml_tensor * dst, int n_chunks, int64_t chunk_size) {
    if (llama_py::can_attend(params, dst)) {
        llama_py::add_parts(params, dst);
    } else {
        ggml_flash_attn_ext_reduce_partials(params, dst, (int64_t) n_chunks, chunk_size);
    }
}

#endif
#endif
