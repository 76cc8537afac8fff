# Puts the page's parts together and writes page.cpp:  cmake -DFOLDER=src/server/page -DOUTPUT=…/page.cpp -P embed.cmake
file(READ ${FOLDER}/page.html page)
file(READ ${FOLDER}/style.css style)
set(script)
foreach(name api sources tree metrics charts main)
    file(READ ${FOLDER}/${name}.js part)
    string(APPEND script "${part}")
endforeach()
string(REPLACE "@STYLE@\n" "${style}" page "${page}")
string(REPLACE "@SCRIPT@\n" "${script}" page "${page}")
file(WRITE ${OUTPUT} "// Made by src/server/page/embed.cmake.
#include \"server/page.hpp\"

namespace espalier::server {

std::string_view page_html() {
    return R\"espalier-page(${page})espalier-page\";
}

}  // namespace espalier::server
")
