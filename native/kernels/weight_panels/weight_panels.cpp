// A type of buffers whose weights lie in panels (panels.h), for products of matrices.
//
// ggml's own "CPU_REPACK" has the same place in its list of such types, and multiplies by 256 bits at a time; more
// than three columns at once, in fours, others each by itself. Here all columns pass while the weights are there.
#include "panel_vectors.h"

#ifdef LLAMA_PY_PANELS

#include "huge_later.h"
#include "panels.h"

#include "../reached.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "traits.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

LLAMA_PY_REACHABLE(weight_panels)

ggml_backend_buffer_type_t llama_py_weight_panels(void);

namespace {

using namespace llama_py_panels;

// Bytes of columns that stay in the second cache while panels pass.
constexpr int64_t NEAR = 384*1024;
// Bytes of weights for which another thread is worth making: these take it two milliseconds, and it may have to wait
// for a core as long.
constexpr size_t FEW = 1 << 19;
// In how many parts each thread takes its share of the weights: another program may have its core meanwhile.
constexpr int64_t PARTS = 8;

// Columns in groups of almost the same size, whose sums have room in the registers.
class Groups {
  public:
    explicit Groups(int64_t columns)
        : columns(columns), count((columns + MOST_COLUMNS - 1)/MOST_COLUMNS) {}

    int64_t begin(int64_t group) const { return columns*group/count; }
    int     size(int64_t group) const  { return (int) (begin(group + 1) - begin(group)); }

    const int64_t columns;
    const int64_t count;
};

// Which columns of a product with experts are whose: those of an expert are behind one another.
struct Uses {
    struct Use {
        int32_t slot, token;
    };

    Uses(char * memory, const ggml_tensor * op)
        : experts(op->src[0]->ne[2]), begin((int64_t *) memory), uses((Use *) (begin + experts + 1)) {}

    static size_t bytes(const ggml_tensor * op) {
        return (op->src[0]->ne[2] + 1)*sizeof(int64_t) + ggml_nelements(op->src[2])*sizeof(Use);
    }

    void find(const ggml_tensor * ids) const {
        std::fill(begin, begin + experts + 1, 0);
        every(ids, [&](int32_t expert, Use) { ++begin[expert]; });
        for (int64_t expert = 0, sum = 0; expert <= experts; ++expert) {
            sum += begin[expert];
            begin[expert] = sum;
        }
        every(ids, [&](int32_t expert, Use use) { uses[--begin[expert]] = use; });
    }

    int64_t count(int64_t expert) const { return begin[expert + 1] - begin[expert]; }

    const int64_t   experts;
    int64_t * const begin;
    Use * const     uses;

  private:
    template <typename F> void every(const ggml_tensor * ids, F && f) const {
        for (int32_t token = 0; token < ids->ne[1]; ++token) {
            for (int32_t slot = 0; slot < ids->ne[0]; ++slot) {
                const auto * id = (const int32_t *) ((const char *) ids->data + token*ids->nb[1] + slot*ids->nb[0]);
                GGML_ASSERT(*id >= 0 && *id < experts);
                f(*id, Use{slot, token});
            }
        }
    }
};

class Weights : public ggml::cpu::tensor_traits {
  public:
    virtual void arrange(ggml_tensor * tensor, const char * rows) const = 0;
};

template <typename Type> class WeightsOf : public Weights {
    using Row     = typename Type::Row;
    using Columns = Column<Type>;

    static int64_t blocks_of(const ggml_tensor * weights) { return weights->ne[0]/Type::SIZE; }

  public:
    void arrange(ggml_tensor * tensor, const char * rows) const override {
        const int64_t panels  = ggml_nrows(tensor)/ROWS;
        const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(ggml_nbytes(tensor)/FEW, std::thread::hardware_concurrency()));
        const int64_t part    = std::max<int64_t>(1, panels/(threads*PARTS));
        std::atomic<int64_t> next{0};
        const auto work = [&] {
            for (int64_t begin = next.fetch_add(part); begin < panels; begin = next.fetch_add(part)) {
                arrange_some(tensor, rows, begin, std::min(begin + part, panels));
            }
        };
        std::vector<std::thread> others;
        try {
            while ((int64_t) others.size() < threads - 1) {
                others.emplace_back(work);
            }
        } catch (const std::system_error &) {
            // There are no more threads: those that there are do it all.
        }
        work();
        for (std::thread & other : others) {
            other.join();
        }
    }

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        const int64_t blocks = blocks_of(op->src[0]);
        switch (op->op) {
            case GGML_OP_MUL_MAT:
                size = ggml_nrows(op->src[1])*blocks*sizeof(Columns);
                return true;
            case GGML_OP_MUL_MAT_ID:
                size = GGML_PAD(ggml_nelements(op->src[2])*blocks*sizeof(Columns), sizeof(int64_t)) + Uses::bytes(op);
                return true;
            default:
                return false;
        }
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) {
            return false;
        }
        LLAMA_PY_REACHED(weight_panels);
        GGML_ASSERT(op->src[1]->type == GGML_TYPE_F32 && op->src[1]->nb[0] == sizeof(float) && op->nb[0] == sizeof(float));
        if (op->op == GGML_OP_MUL_MAT) {
            multiply_matrix(params, op);
        } else {
            multiply_experts(params, op);
        }
        return true;
    }

  private:
    static void arrange_some(ggml_tensor * tensor, const char * from, int64_t begin, int64_t end) {
        const int64_t blocks = blocks_of(tensor);
        for (int64_t panel = begin; panel < end; ++panel) {
            uint8_t * to = (uint8_t *) tensor->data + panel*ROWS*tensor->nb[1];
            const Row * rows[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                rows[r] = (const Row *) (from + (panel*ROWS + r)*tensor->nb[1]);
            }
            for (int64_t b = 0; b < blocks; ++b, to += ROWS*sizeof(Row)) {
                Type::fill(to, rows);
                for (const Row *& row : rows) {
                    ++row;
                }
            }
        }
    }

    static void multiply_matrix(ggml_compute_params * params, ggml_tensor * op) {
        const ggml_tensor * weights = op->src[0];
        const Groups groups(ggml_nrows(op->src[1]));
        auto * const packed = (Columns *) params->wdata;
        quantize_columns(params, blocks_of(weights), groups, packed, [&](int64_t i) {
            return (const float *) place(op->src[1], i);
        });
        begin_chunks(params);
        const int64_t panels = weights->ne[1]/ROWS;
        const int64_t chunks = std::min<int64_t>(panels, params->nth == 1 ? 1 : 4*params->nth);
        every_chunk(params, chunks, [&](int64_t chunk) {
            multiply_some(
                weights, (const char *) weights->data, panels*chunk/chunks, panels*(chunk + 1)/chunks, groups, packed,
                [&](int64_t i) { return (float *) place(op, i); });
        });
    }

    // The columns of each expert are a product of their own.
    static void multiply_experts(ggml_compute_params * params, ggml_tensor * op) {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * columns = op->src[1];
        const int64_t blocks = blocks_of(weights);
        auto * const packed  = (Columns *) params->wdata;
        const int64_t bytes  = ggml_nelements(op->src[2])*blocks*sizeof(Columns);
        const Uses uses((char *) params->wdata + GGML_PAD(bytes, sizeof(int64_t)), op);
        if (params->ith == 0) {
            uses.find(op->src[2]);
        }
        ggml_barrier(params->threadpool);
        int64_t used = 0;
        for (int64_t expert = 0; expert < uses.experts; ++expert) {
            if (uses.count(expert)) {
                ++used;
                const auto * mine = uses.uses + uses.begin[expert];
                quantize_columns(
                    params, blocks, Groups(uses.count(expert)), packed + uses.begin[expert]*blocks, [&](int64_t i) {
                        return (const float *) ((const char *) columns->data + mine[i].slot % columns->ne[1]*columns->nb[1]
                            + mine[i].token*columns->nb[2]);
                    });
            }
        }
        begin_chunks(params);
        const int64_t panels = weights->ne[1]/ROWS;
        const int64_t parts  = std::min(panels, std::max<int64_t>(1, params->nth == 1 ? 1 : 4*params->nth/std::max<int64_t>(1, used)));
        every_chunk(params, uses.experts*parts, [&](int64_t chunk) {
            const int64_t expert = chunk/parts, part = chunk % parts;
            if (uses.count(expert)) {
                const auto * mine = uses.uses + uses.begin[expert];
                multiply_some(
                    weights, (const char *) weights->data + expert*weights->nb[2], panels*part/parts,
                    panels*(part + 1)/parts, Groups(uses.count(expert)), packed + uses.begin[expert]*blocks,
                    [&](int64_t i) {
                        return (float *) ((char *) op->data + mine[i].slot*op->nb[1] + mine[i].token*op->nb[2]);
                    });
            }
        });
    }

    static void begin_chunks(const ggml_compute_params * params) {
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        ggml_barrier(params->threadpool);
    }

    template <typename F> static void every_chunk(const ggml_compute_params * params, int64_t chunks, F && f) {
        for (int64_t chunk = params->ith; chunk < chunks; chunk = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            f(chunk);
        }
    }

    // The i-th of all columns of a tensor.
    static char * place(const ggml_tensor * tensor, int64_t i) {
        const int64_t i1 = i % tensor->ne[1], i2 = i/tensor->ne[1] % tensor->ne[2], i3 = i/tensor->ne[1]/tensor->ne[2];
        return (char *) tensor->data + i1*tensor->nb[1] + i2*tensor->nb[2] + i3*tensor->nb[3];
    }

    // A thread's share of all blocks of all columns; those of a group lie beside each other.
    template <typename F>
    static void quantize_columns(
            const ggml_compute_params * params, int64_t blocks, const Groups & groups, Columns * packed, F && column) {
        for (int64_t group = 0; group < groups.count; ++group) {
            const int     n   = groups.size(group);
            const int64_t all = n*blocks;
            for (int64_t i = all*params->ith/params->nth; i < all*(params->ith + 1)/params->nth; ++i) {
                const float * x = column(groups.begin(group) + i % n) + i/n*Type::SIZE;
                quantize<Type::SIZE, Type::SUB>(x, Type::OFFSET, packed[groups.begin(group)*blocks + i]);
            }
        }
    }

    // Some panels of a matrix, which begins at `data`, by all columns.
    template <typename F>
    static void multiply_some(
            const ggml_tensor * weights, const char * data, int64_t begin, int64_t end, const Groups & groups,
            const Columns * packed, F && out) {
        const int64_t blocks = blocks_of(weights);
        const int64_t near   = std::max<int64_t>(1, NEAR/(MOST_COLUMNS*blocks*(int64_t) sizeof(Columns)));
        for (int64_t first = 0; first < groups.count; first += near) {
            const int64_t last = std::min(first + near, groups.count);
            for (int64_t panel = begin; panel < end; ++panel) {
                for (int64_t group = first; group < last; ++group) {
                    const int n = groups.size(group);
                    float * to[MOST_COLUMNS];
                    for (int i = 0; i < n; ++i) {
                        to[i] = out(groups.begin(group) + i) + panel*ROWS;
                    }
                    multiply_group<Type>(
                        n, (const uint8_t *) data + panel*ROWS*weights->nb[1], blocks,
                        packed + groups.begin(group)*blocks, to);
                }
            }
        }
    }
};

// What multiplies a weight in panels; nullptr if nothing does.
const Weights * weights_of(const ggml_tensor * tensor) {
    static const WeightsOf<Q4K>   q4_k;
    static const WeightsOf<Q5K>   q5_k;
    static const WeightsOf<Q6K>   q6_k;
    static const WeightsOf<Q40>   q4_0;
    static const WeightsOf<Q41>   q4_1;
    static const WeightsOf<Q50>   q5_0;
    static const WeightsOf<Q51>   q5_1;
    static const WeightsOf<IQ4NL> iq4_nl;
    static const WeightsOf<IQ4XS> iq4_xs;
    if (ggml_n_dims(tensor) > 3 || tensor->ne[1] % ROWS != 0 || !ggml_is_contiguous(tensor)) {
        return nullptr;
    }
    switch (tensor->type) {
        case GGML_TYPE_Q4_K:   return &q4_k;
        case GGML_TYPE_Q5_K:   return &q5_k;
        case GGML_TYPE_Q6_K:   return &q6_k;
        case GGML_TYPE_Q4_0:   return &q4_0;
        case GGML_TYPE_Q4_1:   return &q4_1;
        case GGML_TYPE_Q5_0:   return &q5_0;
        case GGML_TYPE_Q5_1:   return &q5_1;
        case GGML_TYPE_IQ4_NL: return &iq4_nl;
        case GGML_TYPE_IQ4_XS: return &iq4_xs;
        default:               return nullptr;
    }
}

class Panels : public ggml::cpu::extra_buffer_type {
    static bool is_product(const ggml_tensor * op) {
        return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && op->src[0]->buffer
            && op->src[0]->buffer->buft == llama_py_weight_panels();
    }

    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        return is_product(op) && weights_of(op->src[0]) && ggml_n_dims(op->src[0]) == (op->op == GGML_OP_MUL_MAT ? 2 : 3)
            && op->src[1]->type == GGML_TYPE_F32
            && !(op->src[1]->buffer && !ggml_backend_buft_is_host(op->src[1]->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return is_product(op) ? (ggml::cpu::tensor_traits *) op->src[0]->extra : nullptr;
    }
};

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor * tensor) {
    tensor->extra = const_cast<Weights *>(weights_of(tensor));
    return GGML_STATUS_SUCCESS;
}

// Of each buffer, in place of the context of the CPU's.
struct Memory {
    void * base;
    void (*free_base)(ggml_backend_buffer_t);
    HugeLater pages;
};

Memory & memory_of(ggml_backend_buffer_t buffer) { return *(Memory *) buffer->context; }

void free_buffer(ggml_backend_buffer_t buffer) {
    Memory * const memory = &memory_of(buffer);
    const auto free_base  = memory->free_base;
    buffer->context = memory->base;
    delete memory;
    free_base(buffer);
}

void * get_base(ggml_backend_buffer_t buffer) { return memory_of(buffer).base; }

void clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(get_base(buffer), value, buffer->size); }

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor) && tensor->extra);
    ((const Weights *) tensor->extra)->arrange(tensor, (const char *) data);
    memory_of(buffer).pages.wrote(size);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        auto * const memory       = new Memory{buffer->context, buffer->iface.free_buffer, {buffer->context, size}};
        buffer->buft              = type;
        buffer->context           = memory;
        buffer->iface.free_buffer = free_buffer;
        buffer->iface.get_base    = get_base;
        buffer->iface.clear       = clear;
        buffer->iface.init_tensor = init_tensor;
        buffer->iface.set_tensor  = set_tensor;
        buffer->iface.get_tensor  = nullptr;
        buffer->iface.cpy_tensor  = nullptr;
    }
    return buffer;
}

ggml_backend_buffer_type make_type() {
    static auto * const panels = new Panels;  // never destroyed: other threads may outlive main
    ggml_backend_buffer_type type = {};  // what is not set has the defaults that ggml gives
    type.iface.get_name      = [](ggml_backend_buffer_type_t) { return "CPU_PANELS"; };
    type.iface.alloc_buffer  = alloc_buffer;
    type.iface.get_alignment = [](ggml_backend_buffer_type_t) { return (size_t) 64; };
    type.device              = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
    type.context             = (ggml::cpu::extra_buffer_type *) panels;
    return type;
}

} // namespace

ggml_backend_buffer_type_t llama_py_weight_panels(void) {
    static ggml_backend_buffer_type type = make_type();
    return &type;
}

#endif
