# Options, packages and compiler flags. Nothing is downloaded: a missing package is one line with its apt name.
# Sets POOLGRAD_WITH_ONEDNN, POOLGRAD_WITH_MPI and POOLGRAD_WITH_CUDA, and the interface target poolgrad_options.
option(POOLGRAD_BUILD_TESTS "Build the tests" ON)
option(POOLGRAD_TESTS_BY_PROGRAM "Compile and run the tests of a program as one, as under sanitizers" OFF)
option(POOLGRAD_BUILD_EXAMPLES "Build the examples" ON)
option(POOLGRAD_BUILD_BENCHMARKS "Build the benchmarks" ON)
set(POOLGRAD_ISA native CACHE STRING "Instruction set of the CPU code, as for -march=: native, x86-64-v3, x86-64-v4")
set(POOLGRAD_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=: address,undefined or thread")
set(POOLGRAD_ONEDNN AUTO CACHE STRING "Use oneDNN for matrix products: AUTO (where found), ON, OFF")
set(POOLGRAD_MPI AUTO CACHE STRING "Build poolgrad::mpi with MPI: AUTO (where found), ON, OFF")
set(POOLGRAD_CUDA AUTO CACHE STRING "Build the CUDA back end: AUTO (where nvcc is found), ON, OFF")
option(POOLGRAD_UNITY "Compile the sources of libraries several at a time: most of a small file's time is its headers" ON)

if(POOLGRAD_SANITIZE)
  set(POOLGRAD_TESTS_BY_PROGRAM ON)
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Allocator and kernels take the time of a step and are compiled at CMake's -O3. The layers above call them: -O1 suffices,
# with the fused multiply-adds of -O2, so both levels give the same bits. Flags of the user are left alone. Under
# sanitizers (their presets say -O0) only the FASTEST layers are optimized, because compiling takes most of the time.
set(POOLGRAD_FASTEST)
set(POOLGRAD_FAST)
if(POOLGRAD_SANITIZE)
  set(POOLGRAD_FASTEST -O1)
elseif(CMAKE_CXX_FLAGS_RELEASE MATCHES "-O3")
  set(POOLGRAD_FASTEST $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  set(POOLGRAD_FAST $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND POOLGRAD_FAST $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-fexpensive-optimizations>)
  endif()
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Names in anonymous namespaces must therefore be unique in a layer. POOLGRAD_UNITY=OFF compiles every file alone.
set(CMAKE_UNITY_BUILD ${POOLGRAD_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

# poolgrad_package(<package> <apt names> [arguments of find_package])
macro(poolgrad_package package apt)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "poolgrad needs ${package}: apt-get install ${apt}")
  endif()
endmacro()

poolgrad_package(Eigen3 libeigen3-dev NO_MODULE)
poolgrad_package(fmt libfmt-dev)
poolgrad_package(nlohmann_json nlohmann-json3-dev)
poolgrad_package(Threads libc6-dev)
if(POOLGRAD_BUILD_EXAMPLES OR POOLGRAD_BUILD_TESTS)
  poolgrad_package(CLI11 libcli11-dev)
endif()
if(POOLGRAD_BUILD_TESTS)
  poolgrad_package(GTest "libgtest-dev libgmock-dev")
  include(GoogleTest)
endif()
if(POOLGRAD_BUILD_BENCHMARKS)
  poolgrad_package(benchmark libbenchmark-dev)
endif()

set(POOLGRAD_WITH_ONEDNN OFF)
if(POOLGRAD_ONEDNN STREQUAL ON)
  poolgrad_package(OneDNN libdnnl-dev)
elseif(POOLGRAD_ONEDNN STREQUAL AUTO)
  find_package(OneDNN QUIET)
endif()
if(NOT POOLGRAD_ONEDNN STREQUAL OFF AND OneDNN_FOUND)
  set(POOLGRAD_WITH_ONEDNN ON)
endif()

set(POOLGRAD_WITH_MPI OFF)
set(MPI_CXX_SKIP_MPICXX ON)  # poolgrad calls the C interface
if(POOLGRAD_MPI STREQUAL ON)
  poolgrad_package(MPI "libopenmpi-dev openmpi-bin" COMPONENTS CXX)
elseif(POOLGRAD_MPI STREQUAL AUTO)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(NOT POOLGRAD_MPI STREQUAL OFF AND MPI_CXX_FOUND)
  set(POOLGRAD_WITH_MPI ON)
endif()

# CUDA is an optional language. The default architectures are a fixed list and do not depend on the building machine: code
# for Hopper, and PTX that any GPU from Ampere on compiles at start-up. A build needs no GPU.
set(POOLGRAD_WITH_CUDA OFF)
if(NOT POOLGRAD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "poolgrad: POOLGRAD_CUDA is AUTO, ON or OFF, not ${POOLGRAD_CUDA}")
elseif(NOT POOLGRAD_CUDA STREQUAL OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Shared: a program that loads the C interface, such as PyTorch, then has one runtime. A library with the static
    # runtime needs more thread-local storage than programs have left for libraries loaded later.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual CACHE STRING "CUDA architectures")
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET REQUIRED)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc does
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(POOLGRAD_WITH_CUDA ON)
  elseif(POOLGRAD_CUDA STREQUAL ON)
    message(FATAL_ERROR "poolgrad needs nvcc for POOLGRAD_CUDA=ON: install the CUDA Toolkit, 12.4 or newer")
  endif()
endif()

add_library(poolgrad_options INTERFACE)
target_compile_features(poolgrad_options INTERFACE cxx_std_20)
# The last two flags change no value: they drop errno and floating-point traps, which nothing here reads.
target_compile_options(poolgrad_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wsign-conversion -Wshadow -Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-march=${POOLGRAD_ISA} -fno-math-errno -fno-trapping-math>)

# GCC collects its garbage late: with precompiled headers it walks them each time, a tenth of the whole time.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(poolgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()

# GCC takes the types of an anonymous namespace for those of a header where files are compiled together.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND POOLGRAD_UNITY)
  target_compile_options(poolgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

# GCC 12 takes "text" + std::string for an overlapping or an endless copy (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(poolgrad_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds>)
  # ... and, where sanitizers are in between, std::regex for a read of uninitialized memory (GCC bug 105562).
  if(POOLGRAD_SANITIZE)
    target_compile_options(poolgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()

# Clang has no ivdep. It warns of a call inside the standard library of GCC 12 (get_temporary_buffer), and of names that
# hide a name in an anonymous namespace.
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(poolgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas -Wno-shadow
    -Wno-deprecated-declarations>)
endif()

# OpenMP's runtimes are not instrumented for the thread sanitizer, which would report races that do not exist; the
# parallel loop uses std::thread there.
if(POOLGRAD_SANITIZE MATCHES thread)
  target_compile_definitions(poolgrad_options INTERFACE POOLGRAD_STD_THREADS)
elseif(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  string(REGEX MATCH "^[0-9]+" major ${CMAKE_CXX_COMPILER_VERSION})
  poolgrad_package(OpenMP libomp-${major}-dev COMPONENTS CXX)
else()
  poolgrad_package(OpenMP g++ COMPONENTS CXX)
endif()
target_link_libraries(poolgrad_options INTERFACE Threads::Threads)
if(POOLGRAD_SANITIZE)
  target_compile_options(poolgrad_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${POOLGRAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  if(POOLGRAD_SANITIZE MATCHES undefined)  # without the checks that the address sanitizer makes, too
    target_compile_options(poolgrad_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr,object-size,nonnull-attribute,returns-nonnull-attribute>)
  endif()
  target_link_options(poolgrad_options INTERFACE -fsanitize=${POOLGRAD_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # as GCC and newer versions of Clang do
    string(REGEX MATCH "address|thread" first ${POOLGRAD_SANITIZE})
    string(TOUPPER "${first}" first)
    target_compile_definitions(poolgrad_options INTERFACE __SANITIZE_${first}__)
    if(first STREQUAL ADDRESS)  # without checks that GCC's lacks, too: the runtime of C++ in C, and frames on the heap
      target_compile_options(poolgrad_options INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=function -fsanitize-address-use-after-return=never>)
    endif()
  endif()
endif()

# For tests, after poolgrad_options: only the tested libraries are checked for undefined behavior, which saves a third of
# the compile time of tests. A name of one test may hide that of another in the same compilation.
add_library(poolgrad_test_options INTERFACE)
target_compile_options(poolgrad_test_options INTERFACE -fno-sanitize=undefined -Wno-shadow)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # x -= x, and comparisons that are refused
  target_compile_options(poolgrad_test_options INTERFACE -Wno-self-assign-overloaded -Wno-unused-comparison)
endif()

message(STATUS "poolgrad: ${CMAKE_BUILD_TYPE}, ISA ${POOLGRAD_ISA}, oneDNN ${POOLGRAD_WITH_ONEDNN}, MPI ${POOLGRAD_WITH_MPI}, "
  "CUDA ${POOLGRAD_CUDA} (nvcc ${POOLGRAD_WITH_CUDA}), sanitizers '${POOLGRAD_SANITIZE}'")
