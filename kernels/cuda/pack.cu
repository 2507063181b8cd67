// Gather tensors into a flat bucket and scatter it back, with cast and scale, in one launch for any number of tensors.
//
//     pack:    tensors --cast, scale--> bucket        unpack:  bucket --cast, scale--> tensors
//
// Bytes moved per element: the itemsize of the tensor plus that of the bucket (fp32 to fp32 8, fp32 to bf16 6).
// Launch: one block of 256 threads per row of `blocks`. Each thread has up to 64 bytes of the wider side in flight:
//     a row of 4096 elements (fp32) takes one pass, and short rows keep all multiprocessors busy to the end.
// Alignment: accesses of up to 16 bytes if tensor and bucket allow, else element by element.
// Same bits as kernels/reference.py, except for the payload of a NaN.

#include "elements.cuh"

struct Tensor {
    void* tensor;
    void* bucket;    // its place in the bucket
    long long kind;  // of `tensor`
};

// to = from * scale. A scale of 1 needs no branch: the product is exact, and only the cast rounds.
template <typename To, typename From> struct Copy {
    using Scale = Compute<To, From>;
    static constexpr int VECTOR = vector_length<To, From>();
    static constexpr int UNROLL = 4;
    template <int V> using Registers = Vector<From, V>;

    To* to;
    const From* from;
    Scale scale;

    __device__ bool aligned() const { return is_aligned<VECTOR>(to) && is_aligned<VECTOR>(from); }

    template <int V> __device__ __forceinline__ void read(Vector<From, V>& source, long long i) const {
        load(source, from + i);
    }

    template <int V> __device__ __forceinline__ void write(const Vector<From, V>& source, long long i) const {
        Vector<To, V> result;
#pragma unroll
        for (int v = 0; v < V; ++v) result.at[v] = convert<To>(convert<Scale>(source.at[v]) * scale);
        store(to + i, result);
    }
};

template <typename To, typename From>
__device__ __forceinline__ void copy(void* to, const void* from, Block block, double scale) {
    To* const first = static_cast<To*>(to) + block.start;
    const From* const source = static_cast<const From*>(from) + block.start;
    for_each(Copy<To, From>{first, source, convert<Compute<To, From>>(scale)}, block.count);
}

// B: the bucket's format.
template <typename B>
__global__ void __launch_bounds__(THREADS) pack(const Tensor* tensors, const Block* blocks, double scale) {
    const Block block = blocks[blockIdx.x];
    const Tensor entry = tensors[block.tensor];
    with_format(entry.kind, [&](auto format) {
        copy<B, typename decltype(format)::type>(entry.bucket, entry.tensor, block, scale);
    });
}

template <typename B>
__global__ void __launch_bounds__(THREADS) unpack(const Tensor* tensors, const Block* blocks, double scale) {
    const Block block = blocks[blockIdx.x];
    const Tensor entry = tensors[block.tensor];
    with_format(entry.kind, [&](auto format) {
        copy<typename decltype(format)::type, B>(entry.tensor, entry.bucket, block, scale);
    });
}
