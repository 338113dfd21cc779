// The restricted C++ that kernels are written in, as nvcc, Metal's compiler or the host's sees it.
// The three headers define the same words, in the namespace espalier::gpu::ESPALIER_DIALECT:
//
//   ESPALIER_DEVICE        before every function of a kernel
//   ESPALIER_CONSTANT      constants that have a name: ESPALIER_CONSTANT int kTile = 16;
//   Global<T>              pointer into device memory; const T where it is only read
//   SharedArray<T, n>      member of the struct that the threads of a block share
//   Shared<T>              pointer to such an array's elements
//   BlockMemory<S>         pointer to that struct
//   Private<T>             pointer to a thread's own variables
//   Arguments<A>           a kernel's arguments, one struct of numbers and Global pointers
//   barrier()              all threads of the block meet here and see each other's writes
//   shuffle, shuffle_xor, shuffle_down, ballot
//                          values of the warp's other lanes; all 32 take part
//   bits_of, float_of, half_to_float, float_to_half, fma, exp, log, sqrt, tanh, cos, sin, floor,
//   fabs, fmax, fmin       numbers
//
// and dialect/common.h adds what follows from them. A kernel is
//
//   ESPALIER_DEVICE void name(Thread at, Arguments<NameArguments> args, BlockMemory<NameMemory> m)
//
// and has one line in kernels/entry_list.h. There is no double, no recursion, no lambda, no pointer
// or reference but these, and nothing of the standard library but integers of fixed size. Elements
// of Global, Shared and SharedArray are numbers. Kernels name the type of what they read (never
// `auto`), because the emulated words are classes that check each access.
#pragma once

#if defined(__METAL_VERSION__)
#include "compute/gpu/dialect/metal.h"
#elif defined(__CUDACC__) || defined(ESPALIER_CUDA_HOST)
#include "compute/gpu/dialect/cuda.h"
#else
#include "compute/gpu/dialect/emulated.h"
#endif

#include "compute/gpu/dialect/common.h"
