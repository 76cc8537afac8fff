# Puts the page's parts together and writes page.cpp:
#   cmake -DFOLDER=src/server/page -DLIBRARIES=.cache/page-libraries -DOUTPUT=…/page.cpp -P embed.cmake
# LIBRARIES may be empty: then the page shows Markdown as plain text. The page's policy names the hash of every script and of
# the style, so that nothing else runs in it, whatever a model writes.

cmake_policy(VERSION 3.25)
set(base64 "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")

# 'sha256-…' of a text, in base64 as a policy has it: 256 bits are 42 signs of six, and one of four bits.
function(policy_hash out text)
    string(SHA256 hex "${text}")
    string(APPEND hex "00")
    set(made)
    foreach(at RANGE 0 63 3)
        string(SUBSTRING ${hex} ${at} 3 digits)
        math(EXPR first "0x${digits} >> 6")
        math(EXPR second "0x${digits} & 63")
        string(SUBSTRING ${base64} ${first} 1 first)
        string(SUBSTRING ${base64} ${second} 1 second)
        string(APPEND made ${first}${second})
    endforeach()
    string(SUBSTRING ${made} 0 43 made)
    set(${out} "sha256-${made}=" PARENT_SCOPE)
endfunction()

set(scripts)
set(hashes)
# Within a script HTML takes these three for its own; \x3c is the same sign in strings and in regular expressions.
function(add_script text)
    string(REPLACE "<!--" "\\x3c!--" script_text "${text}")
    string(REPLACE "<script" "\\x3cscript" script_text "${script_text}")
    string(REPLACE "</script" "\\x3c/script" script_text "${script_text}")
    policy_hash(hash "${script_text}")
    set(scripts "${scripts}<script>${script_text}</script>\n" PARENT_SCOPE)
    set(hashes "${hashes} '${hash}'" PARENT_SCOPE)
endfunction()

if(LIBRARIES)
    foreach(name marked purify highlight)
        file(READ ${LIBRARIES}/${name}.js part)
        string(REGEX REPLACE "\n//# sourceMappingURL=[^\n]*" "" part "${part}") # a browser's tools would ask for that file
        add_script("${part}")
    endforeach()
endif()
set(own "\"use strict\";\n")
foreach(name api store conversation files markdown messages generate settings list sources tree metrics charts card compare main)
    file(READ ${FOLDER}/${name}.js part)
    string(APPEND own "${part}")
endforeach()
add_script("${own}")

file(READ ${FOLDER}/page.html page)
file(READ ${FOLDER}/style.css style)
policy_hash(style_hash "${style}")
string(REPLACE "@STYLE_HASH@" "${style_hash}" page "${page}")
string(REPLACE " @SCRIPT_HASHES@" "${hashes}" page "${page}")
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPTS@\n" "${scripts}" page "${page}")
file(WRITE ${OUTPUT} "// Made by src/server/page/embed.cmake.
#include \"server/page.hpp\"

namespace espalier::server {

std::string_view page_html() {
    return R\"espalier-page(${page})espalier-page\";
}

}  // namespace espalier::server
")
