# cmake -DFOLDER=<of tables> -DNAMES=<unit,h200> -DOUTPUT=<file.cpp> -P embed.cmake: the tables as strings of C++, so
# that installed programs need no path.
set(source "// Made by allocator/memory/latency/embed.cmake.\n#include \"allocator/memory/latency.h\"\n\nnamespace poolgrad {\n\n")
string(APPEND source "const std::vector<LatencyText>& latency_texts() {\n  static const std::vector<LatencyText> texts = {\n")
string(REPLACE "," ";" NAMES "${NAMES}")
foreach(name IN LISTS NAMES)
  file(READ ${FOLDER}/${name}.txt text)
  string(APPEND source "      {\"${name}\", R\"poolgrad(${text})poolgrad\"},\n")
endforeach()
file(WRITE ${OUTPUT} "${source}  };\n  return texts;\n}\n\n}  // namespace poolgrad\n")
