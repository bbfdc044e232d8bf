# CUDA is an optional language. Architectures are a fixed list, never that of the machine that builds: code for Hopper,
# and PTX that any newer GPU than Ampere compiles at start-up. No GPU is needed to build.
set(POOLGRAD_WITH_CUDA OFF)
if(NOT POOLGRAD_CUDA STREQUAL OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Shared: in a program that loads the C interface, such as PyTorch, there is one runtime, and a library with the static
    # one inside needs more thread-local storage than programs have left for libraries loaded later.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual CACHE STRING "CUDA architectures" FORCE)
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
