// A test's program: products of one quantized matrix with columns by panels.h alone, for any kind of CPU that the
// compiler is told. Arguments: the type, rows, length, columns, and how often (times are in seconds). Standard
// input: the matrix as a file has it, and the columns in F32; standard output: a column of results after the other.
#include "panels.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace llama_py_panels;

namespace {

template <typename T> void read_all(std::vector<T> & into) {
    if (fread(into.data(), sizeof(T), into.size(), stdin) != into.size()) {
        fprintf(stderr, "too little was given\n");
        exit(2);
    }
}

template <typename Type> void run(int64_t rows, int64_t length, int64_t columns, int repeats) {
    using Row = typename Type::Row;
    const int64_t blocks = length/Type::SIZE;
    std::vector<Row> matrix(rows*blocks);
    std::vector<float> given(columns*length), out(columns*rows);
    read_all(matrix);
    read_all(given);
    std::vector<uint8_t> panels(matrix.size()*sizeof(Row));
    for (int64_t panel = 0; panel < rows/ROWS; ++panel) {
        for (int64_t b = 0; b < blocks; ++b) {
            const Row * of[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                of[r] = &matrix[(panel*ROWS + r)*blocks + b];
            }
            Type::fill(panels.data() + (panel*blocks + b)*ROWS*sizeof(Row), of);
        }
    }
    const auto start = std::chrono::steady_clock::now();
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int64_t first = 0; first < columns; first += MOST_COLUMNS) {
            const int n = (int) (columns - first < MOST_COLUMNS ? columns - first : MOST_COLUMNS);
            std::vector<Column<Type>> packed(n*blocks);
            for (int64_t i = 0; i < n*blocks; ++i) {
                quantize<Type::SIZE, Type::SUB>(
                    &given[(first + i % n)*length + i/n*Type::SIZE], Type::OFFSET, packed[i]);
            }
            for (int64_t panel = 0; panel < rows/ROWS; ++panel) {
                float * to[MOST_COLUMNS];
                for (int i = 0; i < n; ++i) {
                    to[i] = &out[(first + i)*rows + panel*ROWS];
                }
                multiply_group<Type>(
                    n, panels.data() + panel*blocks*ROWS*sizeof(Row), blocks, packed.data(), to);
            }
        }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fprintf(stderr, "%g\n", took.count()/repeats);
    fwrite(out.data(), sizeof(float), out.size(), stdout);
}

} // namespace

int main(int argc, char ** argv) {
    if (argc != 6) {
        return 2;
    }
    const std::string type = argv[1];
    const int64_t rows = atoll(argv[2]), length = atoll(argv[3]), columns = atoll(argv[4]);
    const int repeats = atoi(argv[5]);
    if (type == "Q4_K")        run<Q4K>(rows, length, columns, repeats);
    else if (type == "Q5_K")   run<Q5K>(rows, length, columns, repeats);
    else if (type == "Q6_K")   run<Q6K>(rows, length, columns, repeats);
    else if (type == "Q4_0")   run<Q40>(rows, length, columns, repeats);
    else if (type == "Q4_1")   run<Q41>(rows, length, columns, repeats);
    else if (type == "Q5_0")   run<Q50>(rows, length, columns, repeats);
    else if (type == "Q5_1")   run<Q51>(rows, length, columns, repeats);
    else if (type == "IQ4_NL") run<IQ4NL>(rows, length, columns, repeats);
    else if (type == "IQ4_XS") run<IQ4XS>(rows, length, columns, repeats);
    else                       return 2;
    return 0;
}
