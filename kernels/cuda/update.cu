// Unpack a reduced bucket and update the parameters in one pass: all parameters of a bucket in one launch.
//
// Bytes moved per element, fp32: SGD 12 (read value and gradient, write value), with momentum 20, Adam 28.
// Launch: one block of 256 threads per row of `blocks`. Each thread has up to 32 bytes of every array under way, so
//     rows of a multiple of 2048 elements (fp32) suit it.
// Alignment: accesses of up to 16 bytes where value, gradient and state allow, else element by element.
// Same bits as kernels/reference.py with the formulas of kernels/optimizers, operation by operation; an optimiser's
// numbers are rounded to the type of the computation, fp32, or fp64 for fp64 parameters.

#include "elements.cuh"

constexpr int MAX_STATE = 2;  // arrays per parameter: as in kernels/launch_tables.py

struct Parameter {
    void* value;
    const void* grad;        // its place in the bucket
    void* state[MAX_STATE];  // in the type of the computation; null where the optimiser has fewer arrays
    long long kind;          // of `value`
};

// ---- Optimisers: the formula for one element, in the type C ---------------------------------------------------------
//
// STATE is the number of state arrays. The members, all double, are what Optimizer.kernel gives for an iteration, in
// the same order.

template <typename C> __device__ __forceinline__ C decayed(C grad, C value, double weight_decay) {
    return weight_decay != 0 ? grad + convert<C>(weight_decay) * value : grad;
}

struct Sgd {
    static constexpr int STATE = 0;
    double lr, weight_decay;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C*) const {
        value = value - decayed(grad, value, weight_decay) * convert<C>(lr);
    }
};

struct Momentum {
    static constexpr int STATE = 1;
    double lr, weight_decay, momentum, nesterov;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C* state) const {
        const C keep = convert<C>(momentum);
        C& velocity = state[0];
        grad = decayed(grad, value, weight_decay);
        velocity = velocity * keep + grad;
        value = value - (nesterov != 0 ? grad + keep * velocity : velocity) * convert<C>(lr);
    }
};

struct Adam {
    static constexpr int STATE = 2;
    double beta1, beta2, epsilon, weight_decay, step, correction;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C* state) const {
        move(value, decayed(grad, value, weight_decay), state);
    }

    template <typename C> __device__ __forceinline__ void move(C& value, C grad, C* state) const {
        C &mean = state[0], &square = state[1];
        mean = mean * convert<C>(beta1) + convert<C>(1 - beta1) * grad;
        square = square * convert<C>(beta2) + grad * grad * convert<C>(1 - beta2);
        const C root = square_root(square) * convert<C>(correction) + convert<C>(epsilon);
        value = value - convert<C>(step) * (mean / root);
    }
};

struct AdamW {
    static constexpr int STATE = 2;
    double beta1, beta2, epsilon, kept, step, correction;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C* state) const {
        value = value * convert<C>(kept);
        Adam{beta1, beta2, epsilon, 0, step, correction}.move(value, grad, state);
    }
};

// ---- One launch -----------------------------------------------------------------------------------------------------

// T: the parameter's format, B: the bucket's.
template <typename T, typename B, typename Optimizer> struct Update {
    using C = Compute<T>;
    using Scale = Compute<C, B>;
    static constexpr int VECTOR = vector_length<T, B, C>();
    static constexpr int UNROLL = 2;
    static_assert(Optimizer::STATE <= MAX_STATE, "the table has room for MAX_STATE arrays");
    template <int V> struct Registers {
        Vector<T, V> value;
        Vector<B, V> grad;
        Vector<C, V> state[MAX_STATE];
    };

    T* value;
    const B* grad;
    C* state[MAX_STATE];
    Scale scale;
    unsigned char* finite;
    Optimizer optimizer;

    __device__ Update(const Parameter& parameter, long long start, double scale, unsigned char* finite,
                      const Optimizer& optimizer)
        : value(static_cast<T*>(parameter.value) + start),
          grad(static_cast<const B*>(parameter.grad) + start),
          scale(convert<Scale>(scale)),
          finite(finite),
          optimizer(optimizer) {
        for (int s = 0; s < Optimizer::STATE; ++s) state[s] = static_cast<C*>(parameter.state[s]) + start;
    }

    __device__ bool aligned() const {
        bool all = is_aligned<VECTOR>(value) && is_aligned<VECTOR>(grad);
        for (int s = 0; s < Optimizer::STATE; ++s) all = all && is_aligned<VECTOR>(state[s]);
        return all;
    }

    template <int V> __device__ __forceinline__ void read(Registers<V>& registers, long long i) const {
        load(registers.value, value + i);
        load(registers.grad, grad + i);
#pragma unroll
        for (int s = 0; s < Optimizer::STATE; ++s) load(registers.state[s], state[s] + i);
    }

    template <int V> __device__ __forceinline__ void write(Registers<V>& registers, long long i) const {
        bool all_finite = true;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            C element = convert<C>(registers.value.at[v]), own[MAX_STATE];
            for (int s = 0; s < Optimizer::STATE; ++s) own[s] = registers.state[s].at[v];
            const C grad = convert<C>(convert<Scale>(registers.grad.at[v]) * scale);
            all_finite &= is_finite(grad);
            optimizer(element, grad, own);
            for (int s = 0; s < Optimizer::STATE; ++s) registers.state[s].at[v] = own[s];
            registers.value.at[v] = convert<T>(element);
        }
        store(value + i, registers.value);
        if (finite != nullptr && !all_finite) *finite = 0;  // any number of threads may write it, all write the same
#pragma unroll
        for (int s = 0; s < Optimizer::STATE; ++s) store(state[s] + i, registers.state[s]);
    }
};

// `finite` (or null) is set to 0 where a gradient is not finite.
template <typename B, typename Optimizer, typename... Double>
__global__ void __launch_bounds__(THREADS)
    update(const Parameter* parameters, const Block* blocks, double scale, unsigned char* finite, Double... numbers) {
    const Block block = blocks[blockIdx.x];
    const Parameter parameter = parameters[block.tensor];
    const Optimizer optimizer{numbers...};
    with_format(parameter.kind, [&](auto format) {
        using T = typename decltype(format)::type;
        for_each(Update<T, B, Optimizer>(parameter, block.start, scale, finite, optimizer), block.count);
    });
}
