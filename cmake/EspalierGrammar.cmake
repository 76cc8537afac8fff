# xgrammar as one static target, from the sources that tools/setup.sh fetches into .cache (a machine without them gets
# everything but structured output). Theirs are the warnings, ours the sanitizers; -O2 whatever the build type, because
# without optimisation a grammar of a real vocabulary takes minutes to compile.
set(ESPALIER_GRAMMAR AUTO CACHE STRING "Structured output (needs xgrammar's sources): ON, OFF, or AUTO: where they are")
set(ESPALIER_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/.cache/xgrammar-0.2.8 CACHE PATH "xgrammar's sources")

set(espalier_with_grammar OFF)
if(ESPALIER_GRAMMAR STREQUAL AUTO)
    if(EXISTS ${ESPALIER_XGRAMMAR_DIR}/cpp/grammar_matcher.cc)
        set(espalier_with_grammar ON)
    else()
        message(WARNING "structured output is left out: xgrammar's sources are not in ${ESPALIER_XGRAMMAR_DIR} (tools/setup.sh run)")
    endif()
elseif(ESPALIER_GRAMMAR)
    if(NOT EXISTS ${ESPALIER_XGRAMMAR_DIR}/cpp/grammar_matcher.cc)
        message(FATAL_ERROR "ESPALIER_GRAMMAR is on, but xgrammar's sources are not in ${ESPALIER_XGRAMMAR_DIR} (tools/setup.sh run)")
    endif()
    set(espalier_with_grammar ON)
endif()
if(NOT espalier_with_grammar)
    return()
endif()

file(GLOB_RECURSE xgrammar_sources ${ESPALIER_XGRAMMAR_DIR}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/.*\\.cc$")

# Patched copies (third_party/xgrammar/README.md says what each patch mends). They are made beside those in use, which change
# only where their text does: configuring again compiles nothing again.
find_program(ESPALIER_GIT git REQUIRED)
file(GLOB xgrammar_patches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/third_party/xgrammar/patches/*.patch)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${xgrammar_patches})
set(patched_now ${PROJECT_BINARY_DIR}/xgrammar)
set(patched_next ${PROJECT_BINARY_DIR}/xgrammar.next)
set(patched_files)
foreach(patch ${xgrammar_patches})
    file(STRINGS ${patch} targets REGEX "^\\+\\+\\+ b/cpp/")
    list(TRANSFORM targets REPLACE "^\\+\\+\\+ b/cpp/" "")
    list(APPEND patched_files ${targets})
endforeach()
list(REMOVE_DUPLICATES patched_files)
file(REMOVE_RECURSE ${patched_next})
file(MAKE_DIRECTORY ${patched_now})
foreach(file ${patched_files})
    file(COPY ${ESPALIER_XGRAMMAR_DIR}/cpp/${file} DESTINATION ${patched_next})
endforeach()
# Outside any repository: within one, git apply passes over files that the repository ignores.
execute_process(
    COMMAND ${CMAKE_COMMAND} -E env GIT_CEILING_DIRECTORIES=${PROJECT_BINARY_DIR} ${ESPALIER_GIT} apply -p2 ${xgrammar_patches}
    WORKING_DIRECTORY ${patched_next} RESULT_VARIABLE patch_result ERROR_VARIABLE patch_error)
if(NOT patch_result EQUAL 0)
    message(FATAL_ERROR "${ESPALIER_XGRAMMAR_DIR} is not xgrammar 0.2.8: ${patch_error}")
endif()
foreach(file ${patched_files})
    list(REMOVE_ITEM xgrammar_sources ${ESPALIER_XGRAMMAR_DIR}/cpp/${file})
    list(APPEND xgrammar_sources ${patched_now}/${file})
    file(COPY_FILE ${patched_next}/${file} ${patched_now}/${file} ONLY_IF_DIFFERENT)
endforeach()

list(TRANSFORM xgrammar_sources REPLACE "^(${ESPALIER_XGRAMMAR_DIR}/cpp|${PROJECT_BINARY_DIR}/xgrammar)/" "")
espalier_batches(xgrammar_batches "" 8 ${xgrammar_sources})
add_library(espalier_xgrammar STATIC ${xgrammar_batches} ${PROJECT_SOURCE_DIR}/src/grammar/xgrammar/endless_rule.cc)
set_target_properties(espalier_xgrammar PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_features(espalier_xgrammar PRIVATE cxx_std_17)
target_include_directories(espalier_xgrammar SYSTEM PUBLIC ${ESPALIER_XGRAMMAR_DIR}/include
    ${ESPALIER_XGRAMMAR_DIR}/3rdparty/picojson ${ESPALIER_XGRAMMAR_DIR}/3rdparty/dlpack/include)
target_include_directories(espalier_xgrammar PRIVATE ${PROJECT_BINARY_DIR}/xgrammar ${ESPALIER_XGRAMMAR_DIR}/cpp
    ${PROJECT_SOURCE_DIR}/src)
target_compile_options(espalier_xgrammar PRIVATE -w -O2)
# What it would print goes to src/grammar (LogMessageImpl, LogFatalImpl).
target_compile_definitions(espalier_xgrammar PUBLIC XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
    XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_link_libraries(espalier_xgrammar PUBLIC Threads::Threads)
espalier_sanitize(espalier_xgrammar)
