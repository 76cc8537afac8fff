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
        $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror>)
    espalier_sanitize(${target})
endfunction()

# espalier_library(<folder> SOURCES … [DEPENDS <folder> …] [LINK <target> …])
# One static library per folder of src/; DEPENDS names folders below it.
function(espalier_library folder)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
    set(target espalier_${folder})
    add_library(${target} STATIC ${ARG_SOURCES})
    add_library(espalier::${folder} ALIAS ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder} POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    list(TRANSFORM ARG_DEPENDS PREPEND espalier_ OUTPUT_VARIABLE folders)
    target_link_libraries(${target} PUBLIC ${folders} ${ARG_LINK})
    espalier_compile_options(${target})
endfunction()

# espalier_test(<name> SOURCES … DEPENDS <folder> … [LABEL quick|long|gpu])
# Tests labelled gpu need a CUDA device: they are built everywhere nvcc is.
function(espalier_test name)
    cmake_parse_arguments(ARG "" "LABEL" "SOURCES;DEPENDS;LINK" ${ARGN})
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
    if(NOT ARG_LABEL STREQUAL quick)
        set(prefix TEST_PREFIX ${ARG_LABEL}/)
    endif()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 ${prefix}
        PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 600)
endfunction()
