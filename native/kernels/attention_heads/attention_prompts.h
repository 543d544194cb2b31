// Included by attention_heads.h: many rows that attend to much the same cells, those of a prompt.
//
// The scores of a block of cells are computed for neighbouring rows at once, a row in each lane: greatest,
// exponentials and sums need nothing from other lanes then. Keys and values become single precision once
// for all rows that pass by.
#ifndef LLAMA_PY_ATTENTION_PROMPTS_H
#define LLAMA_PY_ATTENTION_PROMPTS_H

#include <cfloat>

namespace llama_py {

static constexpr int PANEL = 2*WIDTH;             // rows whose scores are computed together
// The scores of so many cells for so many vectors of rows are computed at once: with their sums by lanes (``tree``)
// more do not fit into the registers. Two cores of an AMD EPYC, heads of 64, AVX-512: 8 x 1 costs 0.76 of 8 x 2.
#ifdef LLAMA_PY_WIDE
static constexpr int OF_PANEL = 8;
static constexpr int VECTORS = 1;
#else
static constexpr int OF_PANEL = 4;
static constexpr int VECTORS = 2;
#endif
static constexpr int SUMMED = 8;                  // rows whose values are summed together
static constexpr int FETCHED = 8;                 // how many cells before they are widened
static constexpr int64_t WIDEST = 256;
static constexpr int64_t MOST_QUERIES = 16384;

static_assert(MOST_ROWS%PANEL == 0 && BLOCK%OF_PANEL == 0 && BLOCK == 64, "whole panels, whole blocks");

struct Tile {
    alignas(64) float queries[MOST_QUERIES];      // [panel][d, in the order of ``tree``][row]
    alignas(64) float keys[BLOCK*WIDEST];         // [cell][d]
    alignas(64) float values[BLOCK*WIDEST];
    alignas(64) float scores[BLOCK*PANEL];        // [cell][row]
    alignas(64) float factors[PANEL];
    int64_t cells[BLOCK];                         // those that are collected for the next block
    int count = 0;
    bool plain = true;                            // all rows attend to all of them, and nothing is added
};

static inline int whole_panels(int rows) {
    return (rows + PANEL - 1)/PANEL*PANEL;
}

static inline bool fits_tile(const Rows & rows, const Scoring & scoring) {
    return rows.count >= WIDTH && scoring.n_keys <= WIDEST && scoring.n_values <= WIDEST
        && whole_panels(rows.count)*scoring.n_keys <= MOST_QUERIES;
}

// A bit for each value of a block of a mask that equals another one.
static inline uint64_t equal_bits(const ggml_fp16_t * mask, int bits) {
    const __m256i other = _mm256_set1_epi16((short) bits);
    uint64_t equal = 0;
    for (int c = 0; c < BLOCK; c += 32) {
        const __m256i lower = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *) (mask + c)), other);
        const __m256i upper = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *) (mask + c + 16)), other);
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(lower, upper), 0xd8);
        equal |= (uint64_t) (uint32_t) _mm256_movemask_epi8(bytes) << c;
    }
    return equal;
}

// The cells of [cell, cell + count) that any row attends to; ``plain`` as in Tile.
static inline uint64_t attended_by_any(const Rows & rows, int64_t cell, int count, bool & plain) {
    const uint64_t every = count < BLOCK ? (1ull << count) - 1 : ~0ull;
    uint64_t any = 0;
    uint64_t zero = every;
    for (int r = 0; r < rows.count; ++r) {
        const ggml_fp16_t * mask = rows.masks[r];
        if (!mask) {
            return every;
        }
        if (r > 0 && mask == rows.masks[r - 1]) {
            continue;
        }
        mask += cell;
        alignas(64) ggml_fp16_t whole[BLOCK];
        if (count < BLOCK) {
            memset(whole, 0, sizeof(whole));
            memcpy(whole, mask, count*sizeof(ggml_fp16_t));
            mask = whole;
        } else {  // the next block of this mask is far from all that is read meanwhile
            __builtin_prefetch(mask + BLOCK);
            __builtin_prefetch(mask + BLOCK + BLOCK/2);
        }
        any  |= ~equal_bits(mask, 0xfc00);
        zero &= equal_bits(mask, 0);
    }
    plain = plain && (any & every & ~zero) == 0;
    return any & every;
}

// The numbers of a row are added as if they lay in a vector, lane by lane: those of a lane in their order, then lanes
// as ``sums`` does it. ``next`` gives those of lane 0, of lane 8 (where there are sixteen), of lane 1, ...
template <typename Sum, int LANES, typename Next> static inline Sum tree(Next & next) {
    if constexpr (LANES == 1) {
        return next();
    } else {
        const Sum sum = tree<Sum, LANES/2>(next);
        return plus(sum, tree<Sum, LANES/2>(next));
    }
}

// The lane that is added so many lanes later than the first.
static inline int64_t lane_of(int64_t place) {
    return WIDTH > 8 ? place/2 + place%2*8 : place;
}

static void turn_queries(const Rows & rows, const Scoring & scoring, Tile & tile) {
    const int64_t of_lane = scoring.n_keys/WIDTH;
    memset(tile.queries, 0, whole_panels(rows.count)*scoring.n_keys*sizeof(float));
    for (int r = 0; r < rows.count; ++r) {
        float * into = tile.queries + r/PANEL*PANEL*scoring.n_keys + r%PANEL;
        for (int64_t d = 0; d < scoring.n_keys; ++d) {
            const int64_t lane = lane_of(d/of_lane);
            into[d*PANEL] = rows.queries[r][lane + d%of_lane*WIDTH];
        }
    }
}

static void widen_cells(const Memory & memory, const Scoring & scoring, Tile & tile) {
    for (int c = 0; c < tile.count; ++c) {
        const int64_t cell = tile.cells[c];
        if (c + FETCHED < tile.count) {
            const int64_t ahead = tile.cells[c + FETCHED];
            fetch(memory.keys + ahead*memory.key_stride, memory.key_bytes);
            fetch(memory.values + ahead*memory.value_stride, memory.value_bytes);
        }
        memory.widen_keys(memory.keys + cell*memory.key_stride, scoring.n_keys, tile.keys + c*scoring.n_keys);
        memory.widen_values(memory.values + cell*memory.value_stride, scoring.n_values, tile.values + c*scoring.n_values);
    }
    for (int c = tile.count; c%OF_PANEL; ++c) {  // computed, and not used
        memset(tile.keys + c*scoring.n_keys, 0, scoring.n_keys*sizeof(float));
    }
}

// Of each of a few cells for a few vectors of rows.
struct Products {
    Floats of[OF_PANEL][VECTORS];
};

static inline Products plus(const Products & a, const Products & b) {
    Products sum;
    for (int i = 0; i < OF_PANEL; ++i) {
        for (int v = 0; v < VECTORS; ++v) {
            sum.of[i][v] = plus(a.of[i][v], b.of[i][v]);
        }
    }
    return sum;
}

// Those of one lane; ``query`` goes on to the next one.
static inline Products of_lane(const float *& query, const float * key, int64_t n) {
    Products sum;
    for (int i = 0; i < OF_PANEL; ++i) {
        for (int v = 0; v < VECTORS; ++v) {
            sum.of[i][v] = all(0.0f);
        }
    }
    for (int64_t d = 0; d < n; d += WIDTH, query += PANEL) {
        Floats rows[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            rows[v] = load(query + v*WIDTH);
        }
        for (int i = 0; i < OF_PANEL; ++i) {
            const Floats one = all(key[i*n + d]);
            for (int v = 0; v < VECTORS; ++v) {
                sum.of[i][v] = fma(rows[v], one, sum.of[i][v]);
            }
        }
    }
    return sum;
}

static void score_panel(int panel, const Scoring & scoring, Tile & tile) {
    const int64_t n = scoring.n_keys;
    const Floats scale = all(scoring.scale);
    for (int c = 0; c < tile.count; c += OF_PANEL) {
        for (int lane = 0; lane < PANEL; lane += VECTORS*WIDTH) {
            const float * query = tile.queries + panel*n + lane;
            const float * key   = tile.keys + c*n;
            int64_t place = 0;
            auto next = [&] { return of_lane(query, key + lane_of(place++), n); };
            const Products sum = tree<Products, WIDTH>(next);
            for (int i = 0; i < OF_PANEL; ++i) {
                for (int v = 0; v < VECTORS; ++v) {
                    store(tile.scores + (c + i)*PANEL + lane + v*WIDTH, times(sum.of[i][v], scale));
                }
            }
        }
    }
    for (int i = 0; scoring.softcap != 0.0f && i < tile.count*PANEL; ++i) {
        tile.scores[i] = scoring.softcap*tanhf(tile.scores[i]);
    }
}

static void add_masks(const Rows & rows, int panel, Tile & tile) {
    for (int r = panel; r < MIN(panel + PANEL, rows.count); ++r) {
        float * score = tile.scores + r - panel;
        for (int c = 0; c < tile.count; ++c) {
            score[c*PANEL] = fmaf(rows.slopes[r], _cvtsh_ss(rows.masks[r][tile.cells[c]]), score[c*PANEL]);
        }
    }
}

// Scores become weights, as in ``weigh``. Whoever attends to nothing so far has no greatest score, but -FLT_MAX
// can be subtracted.
static void weigh_panel(Rows & rows, int panel, Tile & tile) {
    for (int lane = 0; lane < PANEL; lane += WIDTH) {
        float * greatest_of = rows.greatest + panel + lane;
        float * sum_of      = rows.sum + panel + lane;
        for (int c = tile.count; c%WIDTH; ++c) {
            store(tile.scores + c*PANEL + lane, all(-INFINITY));
        }
        const Floats before = load(greatest_of);
        Floats now = before;
        for (int c = 0; c < tile.count; ++c) {
            now = greater(now, load(tile.scores + c*PANEL + lane));
        }
        const Floats less = greater(now, all(-FLT_MAX));
        Floats of_lane[WIDTH];
        for (int i = 0; i < WIDTH; ++i) {
            of_lane[i] = all(0.0f);
        }
        for (int c = 0; c < tile.count; c += WIDTH) {
            for (int i = 0; i < WIDTH; ++i) {
                float * score = tile.scores + (c + i)*PANEL + lane;
                const Floats weight = ggml_v_expf(greater(minus(load(score), less), all(-1000.0f)));
                store(score, weight);
                of_lane[i] = plus(of_lane[i], weight);
            }
        }
        int64_t place = 0;
        auto next = [&] { return of_lane[lane_of(place++)]; };
        const Floats total = tree<Floats, WIDTH>(next);
        const Floats factor = ggml_v_expf(greater(minus(before, less), all(-1000.0f)));
        store(tile.factors + lane, factor);
        store(greatest_of, now);
        store(sum_of, fma(load(sum_of), factor, total));
    }
}

// Adds WIDTH*W values of each cell, weighted, to those of N rows of a panel.
template <int N, int W>
static inline void sum_values(
        Rows & rows, int row, const float * weights, const float * factors, int64_t from, int64_t n, const Tile & tile) {
    Floats sum[N][W];
    for (int r = 0; r < N; ++r) {
        for (int w = 0; w < W; ++w) {
            sum[r][w] = times(load(rows.values(row + r) + from + w*WIDTH), all(factors[r]));
        }
    }
    const float * value = tile.values + from;
    for (int c = 0; c < tile.count; ++c, value += n, weights += PANEL) {
        Floats values[W];
        for (int w = 0; w < W; ++w) {
            values[w] = load(value + w*WIDTH);
        }
        for (int r = 0; r < N; ++r) {
            const Floats weight = all(weights[r]);
            for (int w = 0; w < W; ++w) {
                sum[r][w] = fma(values[w], weight, sum[r][w]);
            }
        }
    }
    for (int r = 0; r < N; ++r) {
        for (int w = 0; w < W; ++w) {
            store(rows.values(row + r) + from + w*WIDTH, sum[r][w]);
        }
    }
}

template <int N>
static void sum_rows(Rows & rows, int row, int panel, int64_t n, const Tile & tile) {
    constexpr int wide = WIDTH/8;
    const float * weights = tile.scores + row - panel;
    const float * factors = tile.factors + row - panel;
    int64_t from = 0;
    for (; from + wide*WIDTH <= n; from += wide*WIDTH) {
        sum_values<N, wide>(rows, row, weights, factors, from, n, tile);
    }
    for (; from < n; from += WIDTH) {
        sum_values<N, 1>(rows, row, weights, factors, from, n, tile);
    }
}

static void sum_panel(Rows & rows, int panel, int64_t n, const Tile & tile) {
    const int end = MIN(panel + PANEL, rows.count);
    int row = panel;
    for (; row + SUMMED <= end; row += SUMMED) {
        sum_rows<SUMMED>(rows, row, panel, n, tile);
    }
    for (; row + 2 <= end; row += 2) {
        sum_rows<2>(rows, row, panel, n, tile);
    }
    if (row < end) {
        sum_rows<1>(rows, row, panel, n, tile);
    }
}

static void attend_block(Rows & rows, const Memory & memory, const Scoring & scoring, Tile & tile, Parts & parts) {
    parts.begin_block();
    widen_cells(memory, scoring, tile);
    for (int panel = 0; panel < rows.count; panel += PANEL) {
        score_panel(panel, scoring, tile);
        if (!tile.plain) {
            add_masks(rows, panel, tile);
        }
        weigh_panel(rows, panel, tile);
        sum_panel(rows, panel, scoring.n_values, tile);
    }
    tile.count = 0;
    tile.plain = true;
}

static void attend_as_tile(Rows & rows, int64_t from, int64_t to, const Memory & memory, const Scoring & scoring) {
    Tile tile;
    Parts parts(rows, 0, rows.count);
    for (int r = rows.count; r < whole_panels(rows.count); ++r) {
        rows.greatest[r] = rows.sum[r] = 0.0f;
    }
    turn_queries(rows, scoring, tile);
    for (int64_t cell = from; cell < to; cell += BLOCK) {
        bool plain = true;
        uint64_t bits = attended_by_any(rows, cell, (int) MIN((int64_t) BLOCK, to - cell), plain);
        for (; bits; bits &= bits - 1) {
            tile.plain = tile.plain && plain;
            tile.cells[tile.count++] = cell + __builtin_ctzll(bits);
            if (tile.count == BLOCK) {
                attend_block(rows, memory, scoring, tile, parts);
            }
        }
    }
    if (tile.count) {
        attend_block(rows, memory, scoring, tile, parts);
    }
    parts.finish();
}

} // namespace llama_py

#endif
