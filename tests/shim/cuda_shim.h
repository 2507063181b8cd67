// Enough of CUDA for a host compiler: a launch runs every thread of every block in turn. The kernels of kernels/cuda
// have no barrier and share nothing between threads, so each order of threads gives the same result.

#include <math.h>

#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Dimensions {
    unsigned int x, y, z;
};

static thread_local Dimensions gridDim, blockDim, blockIdx, threadIdx;

inline unsigned int __float_as_uint(float x) { return __builtin_bit_cast(unsigned int, x); }
inline float __uint_as_float(unsigned int x) { return __builtin_bit_cast(float, x); }

inline Dimensions position(unsigned long long number, const Dimensions& in) {
    const unsigned long long row = number / in.x;
    return {static_cast<unsigned int>(number % in.x), static_cast<unsigned int>(row % in.y),
            static_cast<unsigned int>(row / in.y)};
}

inline unsigned long long volume(const Dimensions& of) { return 1ULL * of.x * of.y * of.z; }

// args point at the arguments, as those of cudaLaunchKernel do.
template <typename... A, size_t... I>
void launch(void (*kernel)(A...), void** args, unsigned long long first_block, std::index_sequence<I...>) {
    for (unsigned long long b = first_block; b < volume(gridDim); ++b) {
        blockIdx = position(b, gridDim);
        for (unsigned long long t = 0; t < volume(blockDim); ++t) {
            threadIdx = position(t, blockDim);
            kernel(*static_cast<A*>(args[I])...);
        }
    }
}

template <typename... A>
void launch(void (*kernel)(A...), const Dimensions* grid, const Dimensions* block, void** args,
            unsigned long long first_block) {
    gridDim = *grid;
    blockDim = *block;
    launch(kernel, args, first_block, std::index_sequence_for<A...>{});
}

template <typename... A> int parameter_sizes(void (*)(A...), int* sizes) {
    [[maybe_unused]] int next = 0;
    ((sizes[next++] = sizeof(A)), ...);
    return sizeof...(A);
}

// What tests/shim/build.py looks up in the library: the launcher of a kernel, and the sizes of its parameters.
#define SHIM_EXPORT(number, ...)                                                                                  \
    extern "C" void launch_##number(const Dimensions* grid, const Dimensions* block, void** args,                 \
                                    unsigned long long first_block) {                                             \
        launch(__VA_ARGS__, grid, block, args, first_block);                                                      \
    }                                                                                                             \
    extern "C" int sizes_##number(int* sizes) { return parameter_sizes(__VA_ARGS__, sizes); }
