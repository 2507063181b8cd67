// dst = dst op src, element by element: the arithmetic inside a reduction.
//
// Bytes moved per element: three times the itemsize (two reads, one write).
// Launch: blocks of 256 threads; block b handles elements [b * part, (b + 1) * part), cut off at `count`. Each thread
//     has up to 32 bytes of both arrays under way, so a `part` of a multiple of 2048 elements (fp32) suits it.
// Alignment: 16 bytes per access where dst and src allow (`part` is a multiple of 8, of 16 for one-byte types, for
//     this to hold in every block), else element by element. src may be pinned host memory.
// Same bits as NumPy: fp16 and bf16 combine in fp32 and round once, integers wrap, min and max pass a NaN on. Two
// things are not promised, as NumPy itself leaves them to the processor: which NaN, and which of two zeros.

#include "elements.cuh"

// The type in which values are combined.
template <typename T> struct Wide { using type = T; };
template <> struct Wide<float> { using type = Single; };
template <> struct Wide<Half> { using type = Single; };
template <> struct Wide<Bfloat16> { using type = Single; };

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

// A comparison with NaN is false, which picks b: so a NaN in b is passed on, and one in a is asked for.
struct Min {
    template <typename T> static __device__ __forceinline__ T combine(T a, T b) { return a < b || is_nan(a) ? a : b; }
};

struct Max {
    template <typename T> static __device__ __forceinline__ T combine(T a, T b) { return a > b || is_nan(a) ? a : b; }
};

template <typename T, typename Op> struct Combine {
    static constexpr int VECTOR = vector_length<T>();
    static constexpr int UNROLL = 2;
    template <int V> struct Registers {
        Vector<T, V> dst, src;
    };

    T* dst;
    const T* src;

    __device__ bool aligned() const { return is_aligned<VECTOR>(dst) && is_aligned<VECTOR>(src); }

    template <int V> __device__ __forceinline__ void read(Registers<V>& operands, long long i) const {
        load(operands.src, src + i);  // first, as it may come over the bus
        load(operands.dst, dst + i);
    }

    template <int V> __device__ __forceinline__ void write(Registers<V>& operands, long long i) const {
        using W = typename Wide<T>::type;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const W a = static_cast<W>(operands.dst.at[v]), b = static_cast<W>(operands.src.at[v]);
            operands.dst.at[v] = static_cast<T>(Op::combine(a, b));
        }
        store(dst + i, operands.dst);
    }
};

template <typename T, typename Op>
__global__ void __launch_bounds__(THREADS) accumulate(T* dst, const T* src, long long count, long long part) {
    const long long start = part * blockIdx.x;
    if (start >= count) return;
    for_each(Combine<T, Op>{dst + start, src + start}, count - start < part ? count - start : part);
}
