# cmake -DFOLDER=<page> -DOUTPUT=<file.cpp> -P embed.cmake: the page's template, style and script as strings of C++.
set(script "")
foreach(part data colour plot charts main)
  file(READ ${FOLDER}/${part}.js text)
  string(APPEND script "${text}")
endforeach()
file(READ ${FOLDER}/report.html template)
file(READ ${FOLDER}/report.css style)

set(source "// Made by examples/lab/embed.cmake.\nnamespace poolgrad::examples {\n\n")
foreach(name template style script)
  string(APPEND source "extern const char* const page_${name};\nconst char* const page_${name} = R\"poolgrad(${${name}})poolgrad\";\n")
endforeach()
file(WRITE ${OUTPUT} "${source}\n}  // namespace poolgrad::examples\n")
