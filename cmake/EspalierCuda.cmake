# Enables CUDA for Hopper. CMake before 3.26 drops CMAKE_CUDA_STANDARD 20 without a word (it compiles as C++17), so the
# option is spelled out; 90a-real keeps nvcc from a compute_90 pass, which rejects wgmma.
set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "CUDA architectures")
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
enable_language(CUDA)
if(CMAKE_VERSION VERSION_LESS 3.26)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# base/numeric.hpp is constexpr and used on both sides.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr -Werror all-warnings")
# fmt 9 in .cu files: it drops constexpr under nvcc, but not where C++20 needs it; and nvcc takes its constexpr functions
# of long double for device code (warning 20208).
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -DFMT_USE_CONSTEXPR=1 -diag-suppress 20208")
