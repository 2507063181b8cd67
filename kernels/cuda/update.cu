// Unpack a reduced bucket and update the parameters in one pass: all parameters of a bucket in one launch.
//
// Bytes moved per element, fp32: SGD 12 (read value and gradient, write value), with momentum 20, Adam 28.
// Launch: one block of 256 threads per entry of `blocks`. Each thread has up to 32 bytes of every array under way, so
//     entries of a multiple of 2048 elements (fp32) suit it.
// Alignment: accesses of up to 16 bytes where value, gradient and slots allow, else element by element.
// Same bits as kernels/reference.py with the formulas of kernels/rules.py, operation by operation; hyperparameters are
// rounded to the type of the computation, fp32, or fp64 for fp64 parameters.

#include "elements.cuh"

constexpr int MAX_SLOTS = 2;

struct Parameter {
    void* value;
    const void* grad;        // its place in the bucket
    void* slots[MAX_SLOTS];  // the rule's state, in the type of the computation; null where the rule has fewer
    long long kind;          // of `value`
};

// ---- Rules: the formula for one element, in the type C --------------------------------------------------------------

template <typename C> __device__ __forceinline__ C decayed(C grad, C value, double weight_decay) {
    return weight_decay != 0 ? grad + convert<C>(weight_decay) * value : grad;
}

struct Sgd {
    static constexpr int SLOTS = 0;
    double lr, weight_decay;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C*) const {
        value = value - decayed(grad, value, weight_decay) * convert<C>(lr);
    }
};

struct Momentum {
    static constexpr int SLOTS = 1;
    double lr, momentum, weight_decay;
    bool nesterov;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C* slots) const {
        const C keep = convert<C>(momentum);
        C& velocity = slots[0];
        grad = decayed(grad, value, weight_decay);
        velocity = velocity * keep + grad;
        value = value - (nesterov ? grad + keep * velocity : velocity) * convert<C>(lr);
    }
};

struct Adam {
    static constexpr int SLOTS = 2;
    double beta1, beta2, epsilon, weight_decay, step, correction;

    template <typename C> __device__ __forceinline__ void operator()(C& value, C grad, C* slots) const {
        C &mean = slots[0], &square = slots[1];
        grad = decayed(grad, value, weight_decay);
        mean = mean * convert<C>(beta1) + convert<C>(1 - beta1) * grad;
        square = square * convert<C>(beta2) + grad * grad * convert<C>(1 - beta2);
        const C root = square_root(square) * convert<C>(correction) + convert<C>(epsilon);
        value = value - convert<C>(step) * (mean / root);
    }
};

// ---- One launch -----------------------------------------------------------------------------------------------------

// T: the parameter's format, B: the bucket's.
template <typename T, typename B, typename Rule> struct Update {
    using C = Compute<T>;
    using Scale = Compute<C, B>;
    static constexpr int VECTOR = vector_length<T, B, C>();
    static constexpr int UNROLL = 2;
    template <int V> struct Registers {
        Vector<T, V> value;
        Vector<B, V> grad;
        Vector<C, V> slots[MAX_SLOTS];
    };

    T* value;
    const B* grad;
    C* slots[MAX_SLOTS];
    Scale scale;
    Rule rule;

    __device__ Update(const Parameter& parameter, long long start, double scale, const Rule& rule)
        : value(static_cast<T*>(parameter.value) + start),
          grad(static_cast<const B*>(parameter.grad) + start),
          scale(convert<Scale>(scale)),
          rule(rule) {
        for (int s = 0; s < Rule::SLOTS; ++s) slots[s] = static_cast<C*>(parameter.slots[s]) + start;
    }

    __device__ bool aligned() const {
        bool all = is_aligned<VECTOR>(value) && is_aligned<VECTOR>(grad);
        for (int s = 0; s < Rule::SLOTS; ++s) all = all && is_aligned<VECTOR>(slots[s]);
        return all;
    }

    template <int V> __device__ __forceinline__ void read(Registers<V>& state, long long i) const {
        load(state.value, value + i);
        load(state.grad, grad + i);
#pragma unroll
        for (int s = 0; s < Rule::SLOTS; ++s) load(state.slots[s], slots[s] + i);
    }

    template <int V> __device__ __forceinline__ void write(Registers<V>& state, long long i) const {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            C element = convert<C>(state.value.at[v]), own[MAX_SLOTS];
            for (int s = 0; s < Rule::SLOTS; ++s) own[s] = state.slots[s].at[v];
            rule(element, convert<C>(convert<Scale>(state.grad.at[v]) * scale), own);
            for (int s = 0; s < Rule::SLOTS; ++s) state.slots[s].at[v] = own[s];
            state.value.at[v] = convert<T>(element);
        }
        store(value + i, state.value);
#pragma unroll
        for (int s = 0; s < Rule::SLOTS; ++s) store(slots[s] + i, state.slots[s]);
    }
};

template <typename B, typename Rule>
__device__ __forceinline__ void update(const Parameter* parameters, const Block* blocks, double scale, Rule rule) {
    const Block block = blocks[blockIdx.x];
    const Parameter parameter = parameters[block.tensor];
    with_format(parameter.kind, [&](auto format) {
        using T = typename decltype(format)::type;
        for_each(Update<T, B, Rule>(parameter, block.start, scale, rule), block.count);
    });
}

template <typename B>
__global__ void __launch_bounds__(THREADS)
    update_sgd(const Parameter* parameters, const Block* blocks, double scale, double lr, double momentum,
               double weight_decay, int nesterov) {
    if (momentum == 0) {
        update<B>(parameters, blocks, scale, Sgd{lr, weight_decay});
    } else {
        update<B>(parameters, blocks, scale, Momentum{lr, momentum, weight_decay, nesterov != 0});
    }
}

// step = lr / (1 - beta1^t) and correction = 1 / sqrt(1 - beta2^t) at iteration t, which counts from 1.
template <typename B>
__global__ void __launch_bounds__(THREADS)
    update_adam(const Parameter* parameters, const Block* blocks, double scale, double beta1, double beta2,
                double epsilon, double weight_decay, double step, double correction) {
    update<B>(parameters, blocks, scale, Adam{beta1, beta2, epsilon, weight_decay, step, correction});
}
