// Sums of fp32 vectors in double, for kernels: included after simd-inl.h, once per target.
//
//   DoubleVec low = hn::Zero(F64()), high = low;
//   add_squares(v, low, high);  ...
//   double sum = sum_of(low, high);
HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

using F64 = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<F64>;

// f(half of v in double, its sum) for the lower and upper half. Through memory, since a vector of one lane (the scalar
// target) has no halves.
template <class F>
HWY_INLINE void for_halves(Vec v, DoubleVec& low, DoubleVec& high, const F& f) {
  const hn::Rebind<float, F64> narrow;
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, F32(), lanes);
  const size_t step = hn::Lanes(F64());
  low = f(hn::PromoteTo(F64(), hn::Load(narrow, lanes)), low);
  if (step < hn::Lanes(F32())) high = f(hn::PromoteTo(F64(), hn::Load(narrow, lanes + step)), high);
}

HWY_INLINE void add_squares(Vec v, DoubleVec& low, DoubleVec& high) {
  for_halves(v, low, high, [](DoubleVec part, DoubleVec sum) HWY_ATTR { return hn::MulAdd(part, part, sum); });
}
HWY_INLINE double sum_of(DoubleVec low, DoubleVec high) {
  return hn::GetLane(hn::SumOfLanes(F64(), hn::Add(low, high)));
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
