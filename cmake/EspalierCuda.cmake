# Enables CUDA. Kernels of the Hopper family are compiled for 9.0 alone (90a-real keeps nvcc from a compute_90 pass, which
# rejects wgmma), those of the portable family for everything else: machine code for 8.0 runs on 8.6 and 8.9, too, and the
# driver compiles the instructions for 8.0 where there is none (120-real has machine code for Blackwell, 90-real lets Hopper
# run the portable kernels without that). What both families use is compiled for all.
set(ESPALIER_CUDA_PORTABLE_ARCHITECTURES 80 CACHE STRING "CUDA architectures of the portable kernels")
set(espalier_hopper_architectures 90a-real)
set(espalier_shared_architectures ${ESPALIER_CUDA_PORTABLE_ARCHITECTURES})
list(FILTER espalier_shared_architectures EXCLUDE REGEX "^90")
list(PREPEND espalier_shared_architectures ${espalier_hopper_architectures})
set(CMAKE_CUDA_ARCHITECTURES ${espalier_shared_architectures})
# CMake before 3.26 drops CMAKE_CUDA_STANDARD 20 without a word (it compiles as C++17), so the option is spelled out.
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

# espalier_family(<folder> hopper|portable <source> …)
# Kernels of one family beside the folder's others, with the folder's options.
function(espalier_family folder family)
    set(target espalier_${folder})
    set(objects ${target}_${family})
    set(architectures ${espalier_${family}_architectures})
    add_library(${objects} OBJECT ${ARGN})
    set_target_properties(${objects} PROPERTIES CUDA_ARCHITECTURES "${architectures}" POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
    target_compile_features(${objects} PRIVATE cxx_std_20)
    target_link_libraries(${objects} PRIVATE CUDA::cudart_static)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()
set(espalier_portable_architectures ${ESPALIER_CUDA_PORTABLE_ARCHITECTURES})
