# How the CUDA twins are built. KEEL_CUDA says by what:
#   off    not at all: the no_cuda.cpp files stand in their place and say so when called
#   nvcc   for GPUs: CUDA runtime, cuBLASLt, NCCL
#   host   by g++ against tests/support/cuda_host, so that tests execute every kernel on machines without a GPU
# Libraries with CUDA sources link keel_device, which carries the include path of <device/...> and the runtime.
set(KEEL_CUDA off CACHE STRING "off, nvcc, or host (the CUDA sources by g++, executed on the CPU by tests)")
set_property(CACHE KEEL_CUDA PROPERTY STRINGS off nvcc host)
set(KEEL_CUDA_ARCHITECTURES "80;90a;100" CACHE STRING "GPU architectures that nvcc compiles for")

set(KEEL_HAS_CUDA 1)
set(KEEL_CUDA_COMPILER "")
if(KEEL_CUDA STREQUAL off)
  set(KEEL_HAS_CUDA 0)
elseif(KEEL_CUDA STREQUAL nvcc)
  set(CMAKE_CUDA_ARCHITECTURES ${KEEL_CUDA_ARCHITECTURES})
  # --fmad=false: kernels ask for FMA by name, as on the CPU, so both builds of a kernel round alike.
  # --no-compress: a test reads the PTX in the objects.
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 --fmad=false --no-compress")
  if(KEEL_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${KEEL_CCACHE})
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  find_package(CUDAToolkit 13 REQUIRED)
  find_package(nccl REQUIRED MODULE)
  set(KEEL_CUDA_COMPILER "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${KEEL_CUDA_ARCHITECTURES}")
elseif(KEEL_CUDA STREQUAL host)
  find_package(CUDAToolkit 13 REQUIRED)  # its headers
  find_package(nccl REQUIRED MODULE)     # and NCCL's
  find_package(Boost REQUIRED COMPONENTS context)
  set(KEEL_CUDA_COMPILER "executed on the CPU by tests/support/cuda_host for 80")
else()
  message(FATAL_ERROR "KEEL_CUDA is '${KEEL_CUDA}': choose off, nvcc or host")
endif()

add_library(keel_device INTERFACE)
if(KEEL_CUDA STREQUAL nvcc)
  # {fmt} leaves constexpr out under nvcc unless told otherwise, and then does not compile as C++20.
  target_compile_definitions(keel_device INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_include_directories(keel_device INTERFACE ${PROJECT_SOURCE_DIR}/framework/ops)
  target_link_libraries(keel_device INTERFACE CUDA::cudart_static CUDA::cublasLt nccl::nccl)
elseif(KEEL_CUDA STREQUAL host)
  target_link_libraries(keel_device INTERFACE keel_cuda_host)
endif()

# keel_cuda_sources(TARGET a_cuda.cu ...): adds CUDA twins to a library.
function(keel_cuda_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:keel_device>)
  if(KEEL_CUDA STREQUAL host)
    foreach(source ${ARGN})
      if(source MATCHES "\\.cu$")
        # The sanitizer sees every misaligned access, also those that go by the device headers' loads and stores.
        set_source_files_properties(${source} PROPERTIES LANGUAGE CXX
          COMPILE_OPTIONS "-xc++;-fsanitize=alignment;-fno-sanitize-recover=alignment;-Wno-unknown-pragmas")
      endif()
    endforeach()
  endif()
endfunction()
