# How this project declares its parts: one library per folder, one test binary per folder.

macro(keel_compiler_settings)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  # -ffp-contract=off: the same source gives the same bits whatever the compiler fuses; kernels ask for FMA by name.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -ffp-contract=off")
  set(warnings -Wall -Wextra -Wno-psabi -Wno-missing-field-initializers -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
  add_compile_options("$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${warnings}>")
  list(JOIN warnings "," warnings)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${warnings}>")
  if(KEEL_SANITIZER)
    add_compile_options(-fsanitize=${KEEL_SANITIZER} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${KEEL_SANITIZER})
  endif()
  if(KEEL_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)  # all code tells the fuzzer where it has been, not the entry alone
  endif()
  find_program(KEEL_CCACHE ccache)
  if(KEEL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${KEEL_CCACHE})
  endif()
  # Highway: a baseline, AVX2 and two forms of AVX-512 are enough on x86; the others only cost compile time.
  add_compile_definitions("HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
endmacro()

# keel_library(NAME SOURCES a.cpp b.cpp DEPENDS keel::base fmt::fmt [CUDA b_cuda.cu] [NO_CUDA no_cuda.cpp]): target
# keel_NAME, alias keel::NAME. CUDA are the sources of a build with CUDA, NO_CUDA what stands in their place without.
# Includes are written from the project's root: #include "framework/base/error.h".
function(keel_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;CUDA;NO_CUDA" ${ARGN})
  add_library(keel_${name} ${ARG_SOURCES})
  add_library(keel::${name} ALIAS keel_${name})
  target_include_directories(keel_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}> $<INSTALL_INTERFACE:include/keel>)
  target_link_libraries(keel_${name} PUBLIC ${ARG_DEPENDS})
  if(NOT KEEL_HAS_CUDA)
    target_sources(keel_${name} PRIVATE ${ARG_NO_CUDA})
  elseif(ARG_CUDA)
    keel_cuda_sources(keel_${name} ${ARG_CUDA})
  endif()
  set_property(TARGET keel_${name} PROPERTY EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY KEEL_LIBRARIES keel_${name})
endfunction()

# Everything that a build with CUDA adds to the tests: the CPU build has run the rest.
add_custom_target(device_tests)

# GPU machines run test binaries from a bundle (launch/gpu-bundle.sh): libraries that one does not use must not be needed
# for it to start.
function(keel_link_as_needed target)
  if(KEEL_CUDA STREQUAL nvcc)
    target_link_options(${target} PRIVATE LINKER:--as-needed)
  endif()
endfunction()

# Tests wait and compare more than they compute: compiling them with less care saves a quarter of that time.
function(keel_test_program target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  keel_link_as_needed(${target})
endfunction()

# keel_test(NAME SOURCES x_test.cpp DEPENDS keel::base [LABELS long] [DEVICE]): one GoogleTest binary, its cases listed
# in ctest. With DEVICE, a build with CUDA also runs it on the GPU (or its stand-in) as NAME_cuda, label "device".
function(keel_test name)
  cmake_parse_arguments(ARG "DEVICE" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${ARG_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  keel_test_program(test_${name})
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS "${ARG_LABELS}" ENVIRONMENT "OMP_NUM_THREADS=2")
  if(ARG_DEVICE AND KEEL_HAS_CUDA)
    add_dependencies(device_tests test_${name})
    add_test(NAME ${name}_cuda COMMAND test_${name})
    set_tests_properties(${name}_cuda PROPERTIES TIMEOUT 300 LABELS "device;${ARG_LABELS}"
                         ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive;KEEL_TEST_DEVICE=cuda")
  endif()
endfunction()

# keel_mpi_test(NAME RANKS 1 2 4 SOURCES x_test.cpp DEPENDS keel::comm [DEVICE_RANKS 1 2]): the same binary under mpirun,
# once per rank count. Its main (tests/support/mpi_main.cpp) starts MPI, and a failure on any rank fails the test. With
# DEVICE_RANKS, a build with CUDA also runs it on as many GPUs (or their stand-in) as NAME_N_ranks_cuda, label "device".
# WHOLE_MODELS: on the stand-in each kernel runs once only; the ops' own tests run it twice and compare.
function(keel_mpi_test name)
  cmake_parse_arguments(ARG "WHOLE_MODELS" "" "SOURCES;DEPENDS;LABELS;RANKS;DEVICE_RANKS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp)
  target_link_libraries(test_${name} PRIVATE ${ARG_DEPENDS} MPI::MPI_C GTest::gtest GTest::gmock)
  keel_test_program(test_${name})
  foreach(ranks ${ARG_RANKS})
    keel_add_mpi_test(${name}_${ranks}_ranks ${name} ${ranks} "mpi;${ARG_LABELS}" "OMP_NUM_THREADS=1")
  endforeach()
  if(KEEL_HAS_CUDA AND ARG_DEVICE_RANKS)
    add_dependencies(device_tests test_${name})
    set(environment "OMP_NUM_THREADS=1;KEEL_TEST_DEVICE=cuda")
    if(ARG_WHOLE_MODELS)
      list(APPEND environment KEEL_CUDA_HOST_CHECK=0)
    endif()
    foreach(ranks ${ARG_DEVICE_RANKS})
      keel_add_mpi_test(${name}_${ranks}_ranks_cuda ${name} ${ranks} "mpi;device;${ARG_LABELS}" "${environment}")
    endforeach()
  endif()
endfunction()

function(keel_add_mpi_test test name ranks labels environment)
  add_test(NAME ${test}
           COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none -n ${ranks} $<TARGET_FILE:test_${name}>)
  set_tests_properties(${test} PROPERTIES TIMEOUT 300 LABELS "${labels}" PROCESSORS 2 ENVIRONMENT
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_mpi_yield_when_idle=1;${environment}")
endfunction()
