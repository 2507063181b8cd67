// Combine arrays element by element: the arithmetic of a reduction. dst is one of the sources.
//
// accumulate      dst = left op right
// accumulate_all  combines any number strictly from left to right, each read once; device memory holds their addresses
//
// Bytes moved per element: the itemsize for each source and for dst.
// Launch: blocks of 256 threads, each with up to 32 bytes of two sources in flight, over parts (part_of).
// Alignment: 16 bytes per access if all arrays allow, else element by element. All but dst may be pinned host memory.
// Same bits as NumPy: fp16 and bf16 combine in fp32 and round once, integers wrap, min and max propagate NaN. Two
// things are not promised, because NumPy leaves them to the processor: which NaN, and which of two zeros.

#include "elements.cuh"

// Values are combined in their own type; float and storage-only formats (bits) use Single.
template <typename T, typename = void> struct Wide { using type = T; };
template <> struct Wide<float> { using type = Single; };
template <typename T> struct Wide<T, decltype(static_cast<void>(T::bits))> { using type = Single; };

template <typename W> constexpr bool is_integer = true;
template <> constexpr bool is_integer<Single> = false;
template <> constexpr bool is_integer<double> = false;

struct Sum {
    template <typename T> static __device__ __forceinline__ T combine(T a, T b) {
        if constexpr (is_integer<T>) {  // unsigned numbers may overflow, signed ones may not
            return static_cast<T>(static_cast<unsigned long long>(a) + static_cast<unsigned long long>(b));
        } else {
            return a + b;
        }
    }
};

struct Prod {
    template <typename T> static __device__ __forceinline__ T combine(T a, T b) {
        if constexpr (is_integer<T>) {
            return static_cast<T>(static_cast<unsigned long long>(a) * static_cast<unsigned long long>(b));
        } else {
            return a * b;
        }
    }
};

// A comparison with NaN is false and picks b, so a NaN in b propagates and a NaN in a needs a test.
struct Min {
    template <typename T> static __device__ __forceinline__ T combine(T a, T b) { return a < b || is_nan(a) ? a : b; }
};

struct Max {
    template <typename T> static __device__ __forceinline__ T combine(T a, T b) { return a > b || is_nan(a) ? a : b; }
};

template <typename T, typename Op> struct Combine {
    using W = typename Wide<T>::type;
    static constexpr int VECTOR = vector_length<T>();
    static constexpr int UNROLL = 2;
    template <int V> struct Registers {
        Vector<T, V> left, right;
    };

    T* dst;
    const T *left, *right;  // one of them is dst

    __device__ bool aligned() const { return is_aligned<VECTOR>(left) && is_aligned<VECTOR>(right); }

    template <int V> __device__ __forceinline__ void read(Registers<V>& operands, long long i) const {
        load(operands.left, left + i);
        load(operands.right, right + i);
    }

    template <int V> __device__ __forceinline__ void write(Registers<V>& operands, long long i) const {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const W a = static_cast<W>(operands.left.at[v]), b = static_cast<W>(operands.right.at[v]);
            operands.left.at[v] = static_cast<T>(Op::combine(a, b));
        }
        store(dst + i, operands.left);
    }
};

template <typename T, typename Op>
__global__ void __launch_bounds__(THREADS)
    accumulate(T* dst, const T* left, const T* right, long long count, long long part) {
    const long long start = part * blockIdx.x;
    if (start >= count) return;
    for_each(Combine<T, Op>{dst + start, left + start, right + start}, part_of(start, count, part));
}

template <typename T, typename Op> struct CombineAll {
    using W = typename Wide<T>::type;
    static constexpr int VECTOR = vector_length<T>();
    static constexpr int UNROLL = 1;
    template <int V> struct Registers {
        W total[V];
    };

    T* dst;
    const long long* sources;
    int number;
    long long start;

    __device__ __forceinline__ const T* source(int s) const { return reinterpret_cast<const T*>(sources[s]) + start; }

    __device__ bool aligned() const {
        bool all = true;
        for (int s = 0; s < number; ++s) all = all && is_aligned<VECTOR>(source(s));
        return all;
    }

    // Two sources at a time are in flight. Unrolling would gain little and quadruple the code of 48 kernels.
    template <int V> __device__ __forceinline__ void read(Registers<V>& sums, long long i) const {
        Vector<T, V> now, next;
        load(now, source(0) + i);
        load(next, source(1) + i);
#pragma unroll
        for (int v = 0; v < V; ++v) sums.total[v] = static_cast<W>(now.at[v]);
#pragma unroll 1
        for (int s = 2; s < number; ++s) {
            now = next;
            load(next, source(s) + i);
            combine(sums, now);
        }
        combine(sums, next);
    }

    template <int V> static __device__ __forceinline__ void combine(Registers<V>& sums, const Vector<T, V>& terms) {
#pragma unroll
        for (int v = 0; v < V; ++v) sums.total[v] = Op::combine(sums.total[v], static_cast<W>(terms.at[v]));
    }

    template <int V> __device__ __forceinline__ void write(Registers<V>& sums, long long i) const {
        Vector<T, V> rounded;
#pragma unroll
        for (int v = 0; v < V; ++v) rounded.at[v] = static_cast<T>(sums.total[v]);
        store(dst + i, rounded);
    }
};

template <typename T, typename Op>
__global__ void __launch_bounds__(THREADS)
    accumulate_all(T* dst, const long long* sources, int number, long long count, long long part) {
    const long long start = part * blockIdx.x;
    if (start >= count) return;
    for_each(CombineAll<T, Op>{dst + start, sources, number, start}, part_of(start, count, part));
}
