// Update flat arrays of values with their gradients in one pass.
//
// Bytes moved per element, fp32: SGD 12 (read value and gradient, write value), with momentum 20, Adam 28.
// Launch: blocks of 256 threads, each with up to 32 bytes of every array in flight, over parts (part_of).
// Alignment: accesses of up to 16 bytes if values, gradients and state allow, else element by element.
// Same bits as kernels/reference.py with the formulas of kernels/optimizers.py, operation by operation. An optimizer's
// numbers are rounded to the compute type: fp64 for fp64 values, else fp32.

#include "elements.cuh"

constexpr int MAX_STATE = 2;  // state arrays of an optimizer, as in kernels/cuda_backend.py

// ---- Optimizers: the formula for one element, in the type C ---------------------------------------------------------
//
// STATE is the number of state arrays. The members, all double, are those of Optimizer.kernel, in order.

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

// T: the format of the values, B: the format of the gradients.
template <typename T, typename B, typename Optimizer> struct Update {
    using C = Compute<T>;
    using Scale = Compute<C, B>;
    static constexpr int VECTOR = vector_length<T, B, C>();
    static constexpr int UNROLL = 2;
    static_assert(Optimizer::STATE <= MAX_STATE, "a launch has room for MAX_STATE arrays");
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
        if (finite != nullptr && !all_finite) *finite = 0;  // several threads may write the same value
#pragma unroll
        for (int s = 0; s < Optimizer::STATE; ++s) store(state[s] + i, registers.state[s]);
    }
};

// Unused states are null. `finite` (or null) is set to 0 if a gradient is not finite.
template <typename T, typename B, typename Optimizer, typename... Double>
__global__ void __launch_bounds__(THREADS)
    update(T* value, const B* grad, Compute<T>* state0, Compute<T>* state1, long long count, long long part,
           double scale, unsigned char* finite, Double... numbers) {
    using Element = Update<T, B, Optimizer>;
    const long long start = part * blockIdx.x;
    if (start >= count) return;
    const auto factor = convert<typename Element::Scale>(scale);
    Element element{value + start, grad + start, {state0, state1}, factor, finite, Optimizer{numbers...}};
    for (int s = 0; s < Optimizer::STATE; ++s) element.state[s] += start;
    for_each(element, part_of(start, count, part));
}
