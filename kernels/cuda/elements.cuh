// Shared by the kernels: number formats and arithmetic, vectors of 16 bytes, the loop over a block's elements, and the
// tables of a launch.
//
// No header is included, so nvcc, NVRTC (which CuPy calls) and a host compiler with tests/shim all compile this text.
// Results have the bits of kernels/reference.py. This needs --fmad=false: a product that is contracted into the
// following sum is rounded once less.

#ifndef DEAR_MPI_ELEMENTS
#define DEAR_MPI_ELEMENTS

constexpr int THREADS = 256;  // per CUDA block
constexpr int VECTOR_BYTES = 16;

// ---- Arithmetic in fp32 ---------------------------------------------------------------------------------------------
//
// Single is float with explicit instructions: CuPy always compiles with -ftz=true, so the compiler's fp32 instructions
// flush subnormal numbers to zero. double has no such mode.

struct Single {
    float value;

    Single() = default;
    __device__ __forceinline__ explicit Single(float x) : value(x) {}
    __device__ __forceinline__ explicit Single(double x);
    __device__ __forceinline__ explicit operator float() const { return value; }
    __device__ __forceinline__ explicit operator double() const;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ARITHMETIC(symbol, instruction)                                                              \
    __device__ __forceinline__ Single operator symbol(Single a, Single b) {                          \
        asm(instruction " %0, %1, %2;" : "=f"(a.value) : "f"(a.value), "f"(b.value));                \
        return a;                                                                                    \
    }
#define COMPARISON(symbol, instruction)                                                              \
    __device__ __forceinline__ bool operator symbol(Single a, Single b) {                            \
        int result;                                                                                  \
        asm("{ .reg .pred p; " instruction " p, %1, %2; selp.s32 %0, 1, 0, p; }"                     \
            : "=r"(result)                                                                           \
            : "f"(a.value), "f"(b.value));                                                           \
        return result != 0;                                                                          \
    }
__device__ __forceinline__ Single::Single(double x) { asm("cvt.rn.f32.f64 %0, %1;" : "=f"(value) : "d"(x)); }
__device__ __forceinline__ Single::operator double() const {
    double x;
    asm("cvt.f64.f32 %0, %1;" : "=d"(x) : "f"(value));
    return x;
}
__device__ __forceinline__ Single square_root(Single x) {
    asm("sqrt.rn.f32 %0, %1;" : "=f"(x.value) : "f"(x.value));
    return x;
}
#else
#define ARITHMETIC(symbol, instruction) \
    inline Single operator symbol(Single a, Single b) { return Single(a.value symbol b.value); }
#define COMPARISON(symbol, instruction) \
    inline bool operator symbol(Single a, Single b) { return a.value symbol b.value; }
inline Single::Single(double x) : value(static_cast<float>(x)) {}
inline Single::operator double() const { return value; }
inline Single square_root(Single x) { return Single(sqrtf(x.value)); }
#endif

ARITHMETIC(+, "add.rn.f32")
ARITHMETIC(-, "sub.rn.f32")
ARITHMETIC(*, "mul.rn.f32")
ARITHMETIC(/, "div.rn.f32")
COMPARISON(<, "setp.lt.f32")
COMPARISON(>, "setp.gt.f32")
COMPARISON(!=, "setp.neu.f32")  // true for a NaN

#undef ARITHMETIC
#undef COMPARISON

__device__ __forceinline__ double square_root(double x) { return sqrt(x); }

template <typename T> __device__ __forceinline__ bool is_nan(T x) { return x != x; }
template <typename T> __device__ __forceinline__ bool is_finite(T x) { return !is_nan(x - x); }

// ---- Formats of two bytes: storage only -----------------------------------------------------------------------------

struct Half {  // fp16; an overflow gives infinity
    unsigned short bits;

    Half() = default;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
    __device__ __forceinline__ explicit Half(Single x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x.value)); }
    __device__ __forceinline__ explicit Half(double x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x)); }
    __device__ __forceinline__ explicit operator Single() const {
        Single x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x.value) : "h"(bits));
        return x;
    }
#else
    explicit Half(Single x) : bits(__builtin_bit_cast(unsigned short, static_cast<_Float16>(x.value))) {}
    explicit Half(double x) : bits(__builtin_bit_cast(unsigned short, static_cast<_Float16>(x))) {}
    explicit operator Single() const { return Single(static_cast<float>(__builtin_bit_cast(_Float16, bits))); }
#endif
};

struct Bfloat16 {  // the upper half of an fp32; fp64 goes through fp32, as it does in ml_dtypes
    unsigned short bits;

    Bfloat16() = default;

    __device__ __forceinline__ explicit Bfloat16(Single x) {
        const unsigned int wide = __float_as_uint(x.value);
        const unsigned int to_even = 0x7fff + (wide >> 16 & 1);  // would carry some NaN into infinity or zero
        bits = static_cast<unsigned short>((is_nan(x) ? wide | 0x400000 : wide + to_even) >> 16);
    }
    __device__ __forceinline__ explicit Bfloat16(double x) : Bfloat16(Single(x)) {}
    __device__ __forceinline__ explicit operator Single() const {
        return Single(__uint_as_float(static_cast<unsigned int>(bits) << 16));
    }
};

// Convert between any formats, rounding once (but see Bfloat16). A C++ cast between float and double would flush
// subnormal numbers under -ftz=true.
template <typename To> __device__ __forceinline__ To convert(double x) { return static_cast<To>(x); }
template <> __device__ __forceinline__ float convert<float>(double x) { return Single(x).value; }
template <typename To, typename From> __device__ __forceinline__ To convert(From x) {
    return static_cast<To>(static_cast<Single>(x));
}

// The compute type of these formats: double if one of them is double, else Single.
template <typename... T> struct ComputeOf { using type = Single; };
template <typename... T> struct ComputeOf<double, T...> { using type = double; };
template <typename F, typename... T> struct ComputeOf<F, T...> { using type = typename ComputeOf<T...>::type; };
template <typename... T> using Compute = typename ComputeOf<T...>::type;

// ---- The tables of a launch over many tensors: built once, they stay on the device ----------------------------------

struct Block {  // blocks[blockIdx.x]: elements [start, start + count) of one tensor
    long long start;  // a multiple of 8 elements: it keeps a tensor's alignment
    int tensor;
    int count;
};

// Calls f with the format at this index of FORMATS in kernels/dtypes.py; equal for all threads of a block.
template <typename T> struct Format { using type = T; };

template <typename F> __device__ __forceinline__ void with_format(long long kind, F f) {
    switch (kind) {
        case 0: return f(Format<double>{});
        case 1: return f(Format<float>{});
        case 2: return f(Format<Half>{});
        case 3: return f(Format<Bfloat16>{});
    }
}

// ---- Vectors: the data of one access by a thread --------------------------------------------------------------------

template <typename T, int V> struct alignas(V * sizeof(T)) Vector {
    T at[V];
};

// Elements per access. The widest format fills 16 bytes and narrower ones fill less, so each access of a warp is
// contiguous on both sides. (With 16 bytes on the narrow side, accesses on the wide side would leave gaps, and every
// 32-byte sector would be moved twice.)
template <typename... T> __device__ constexpr int vector_length() {
    int widest = 1;
    ((widest = static_cast<int>(sizeof(T)) > widest ? static_cast<int>(sizeof(T)) : widest), ...);
    return VECTOR_BYTES / widest;
}

template <int V, typename T> __device__ __forceinline__ bool is_aligned(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % sizeof(Vector<T, V>) == 0;
}

template <int V, typename T> __device__ __forceinline__ void load(Vector<T, V>& registers, const T* p) {
    registers = *reinterpret_cast<const Vector<T, V>*>(p);
}

template <int V, typename T> __device__ __forceinline__ void store(T* p, const Vector<T, V>& registers) {
    *reinterpret_cast<Vector<T, V>*>(p) = registers;
}

// ---- The loop of a block over its elements --------------------------------------------------------------------------
//
// An Element defines the work at index i, for V neighbours at a time:
//
//     static constexpr int VECTOR;               neighbours per access if memory is aligned
//     static constexpr int UNROLL;               accesses of each array that a thread has in flight
//     template <int V> struct Registers;         the data read
//     template <int V> void read(Registers<V>&, long long i) const;
//     template <int V> void write(Registers<V>&, long long i) const;
//     bool aligned() const;                      whether whole vectors may be accessed
//
// Results may overwrite operands: no thread writes an element that another reads.

template <int V, int N, typename Element>
__device__ __forceinline__ void batch(const Element& element, long long i, long long stride) {
    typename Element::template Registers<V> registers[N];
#pragma unroll
    for (int n = 0; n < N; ++n) element.read(registers[n], i + n * stride);  // all are in flight before one is needed
#pragma unroll
    for (int n = 0; n < N; ++n) element.write(registers[n], i + n * stride);
}

// Handles vectors from i to `end`, N at a time, then the rest with fewer in flight.
template <int V, int N, typename Element>
__device__ __forceinline__ void stride_over(const Element& element, long long i, long long end) {
    const long long stride = static_cast<long long>(V) * blockDim.x;
    for (; i + (N - 1) * stride < end; i += N * stride) batch<V, N>(element, i, stride);
    if constexpr (N > 1) stride_over<V, N / 2>(element, i, end);
}

// Handles all whole vectors of [begin, count); returns where they end.
template <int V, typename Element>
__device__ __forceinline__ long long sweep(const Element& element, long long begin, long long count) {
    const long long end = begin + (count - begin) / V * V;
    stride_over<V, Element::UNROLL>(element, begin + static_cast<long long>(V) * threadIdx.x, end);
    return end;
}

// Handles elements [0, count) with one block: vectors if memory is aligned, then the rest one by one.
template <typename Element> __device__ __forceinline__ void for_each(const Element& element, long long count) {
    const long long done = element.aligned() ? sweep<Element::VECTOR>(element, 0, count) : 0;
    sweep<1>(element, done, count);
}

// Elements of the block that begins at `start`, without a table: block b handles [b * part, (b + 1) * part), cut off at
// `count`. Vectors are aligned in every block if `part` is a multiple of 16. A part of 2048 elements (fp32) gives each
// thread 32 bytes of an array.
__device__ __forceinline__ long long part_of(long long start, long long count, long long part) {
    return count - start < part ? count - start : part;
}

#endif
