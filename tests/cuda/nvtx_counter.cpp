// A profiler for a test: NVTX loads it where NVTX_INJECTION64_PATH names it, and it counts ranges.
#include <nvtx3/nvToolsExt.h>

#include <cstring>

namespace {

int depth = 0, blocks = 0, deepest = 0;

int push(const char* name) {
  blocks += std::strcmp(name, "block") == 0;
  deepest = depth + 1 > deepest ? depth + 1 : deepest;
  return depth++;
}

int pop() {
  return --depth;
}

}  // namespace

extern "C" int nvtx_depth() {
  return depth;
}
extern "C" int nvtx_deepest() {
  return deepest;
}
extern "C" int nvtx_blocks() {
  return blocks;
}

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size)) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
