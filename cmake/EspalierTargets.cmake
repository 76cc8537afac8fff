# How every folder of src/ and tests/ becomes a target, so that their CMakeLists are lists of files.

# The build's sanitizers.
function(espalier_sanitize target)
    if(ESPALIER_SANITIZE)
        target_compile_options(${target} PRIVATE -fsanitize=${ESPALIER_SANITIZE}
            -fno-sanitize-recover=all -fno-omit-frame-pointer
            # Instrumented code makes g++ 12 see uninitialised memory inside <regex> and <functional>.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
        target_link_options(${target} PUBLIC -fsanitize=${ESPALIER_SANITIZE})
    endif()
endfunction()

# Warnings, language level and sanitizers; private to our own targets, never exported.
function(espalier_compile_options target)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror>
        # A source that a batch includes is a header to g++, and may have no names of its own.
        $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    espalier_sanitize(${target})
endfunction()

# espalier_batches(<result> <prefix> <most> <source> …): files that each include up to so many of the sources, as
# <prefix><source>. What a file alone costs to compile is mostly its headers, and the code that each object makes of them
# again: of CLI11, the first eight files take 18 seconds and eight more take 5. (Not CMake's unity builds: those include
# absolute paths, and a compiler cache would know nothing of another clone.)
function(espalier_batches result prefix most)
    list(LENGTH ARGN count)
    math(EXPR batch_count "(${count} + ${most} - 1) / ${most}")
    math(EXPR size "(${count} + ${batch_count} - 1) / ${batch_count}")
    set(batches)
    while(ARGN)
        list(SUBLIST ARGN 0 ${size} sources)
        list(REMOVE_ITEM ARGN ${sources})
        list(TRANSFORM sources REPLACE "(.+)" "#include \"${prefix}\\1\"\n")
        list(JOIN sources "" text)
        list(LENGTH batches number)
        set(batch ${CMAKE_CURRENT_BINARY_DIR}/batch_${number}.cpp)
        file(CONFIGURE OUTPUT ${batch} CONTENT "${text}" @ONLY)
        list(APPEND batches ${batch})
    endwhile()
    set(${result} ${batches} PARENT_SCOPE)
endfunction()

# espalier_library(<folder> [VECTORISED] SOURCES … [ALONE …] [DEPENDS <folder> …] [LINK <target> …])
# One static library per folder of src/; DEPENDS names folders below it. SOURCES are compiled in batches, so names in their
# anonymous namespaces are unique within the folder; ALONE are those with compile options or instruction sets of their own.
# VECTORISED: its loops are written for the vectoriser of -O3; a release compiles the others with -O2, a tenth faster.
function(espalier_library folder)
    cmake_parse_arguments(ARG "VECTORISED" "" "SOURCES;ALONE;DEPENDS;LINK" ${ARGN})
    set(target espalier_${folder})
    espalier_batches(batches ${folder}/ 16 ${ARG_SOURCES})
    add_library(${target} STATIC ${batches} ${ARG_ALONE})
    add_library(espalier::${folder} ALIAS ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder} POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    list(TRANSFORM ARG_DEPENDS PREPEND espalier_ OUTPUT_VARIABLE folders)
    target_link_libraries(${target} PUBLIC ${folders} ${ARG_LINK})
    if(NOT ARG_VECTORISED)
        target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O2>)
    endif()
    espalier_compile_options(${target})
endfunction()

# espalier_test(<name> SOURCES … DEPENDS <folder> … [LABEL quick|long|gpu] [FAMILIES])
# Tests labelled gpu need a CUDA device: they are built everywhere nvcc is. FAMILIES: they run once more with the portable
# kernels, on as much of the GPU as a small card has (support/gpu.hpp).
function(espalier_test name)
    cmake_parse_arguments(ARG "FAMILIES" "LABEL" "SOURCES;DEPENDS;LINK" ${ARGN})
    if(NOT ARG_LABEL)
        set(ARG_LABEL quick)
    endif()
    list(TRANSFORM ARG_DEPENDS PREPEND espalier_ OUTPUT_VARIABLE folders)
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE ${folders} ${ARG_LINK} test_support GTest::gtest_main)
    espalier_compile_options(${name})
    # What is tested is built as it ships; the tests themselves compile a third faster so.
    target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
    # A suite may be built twice, for the quick and for the long run: its names must not meet.
    set(prefix)
    set(timeout 600)
    if(NOT ARG_LABEL STREQUAL quick)
        set(prefix TEST_PREFIX ${ARG_LABEL}/)
        set(timeout 3600)
    endif()
    # What programs keep for their next start goes here and not to the user's cache; no test asks a hub of models.
    set(environment "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache;HF_HUB_OFFLINE=1")
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 ${prefix}
        PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${timeout} ENVIRONMENT "${environment}")
    if(ARG_FAMILIES)
        gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_PREFIX portable/
            PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${timeout} ENVIRONMENT "${environment};ESPALIER_TEST_GPU=small")
    endif()
endfunction()
