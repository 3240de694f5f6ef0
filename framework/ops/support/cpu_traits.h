// What CPUs do not say of themselves. One of cpu_traits_x86.cpp and cpu_traits_other.cpp is built.
#pragma once

namespace keel::ops::cpu {

// Whether its vector instructions multiply bf16 more slowly than fp32, its matrix units (AMX) left aside.
bool has_slow_bf16();

}  // namespace keel::ops::cpu
