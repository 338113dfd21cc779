// The logistic function in vectors.
#if defined(ESPALIER_CPU_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ESPALIER_CPU_SIGMOID_INL_H_
#undef ESPALIER_CPU_SIGMOID_INL_H_
#else
#define ESPALIER_CPU_SIGMOID_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {

// x · sigmoid(z)
template <typename V>
HWY_INLINE V times_sigmoid(V x, V z) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::DFromV<V> d;
  // Beyond 2^127 the exponential would overflow; the quotient is below 1e-36 there.
  const V exponent = hn::Min(hn::Neg(z), hn::Set(d, 88.0f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, exponent)));
}

}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
