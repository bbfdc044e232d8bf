cmake_policy(VERSION 3.22)

# poolgrad_public_headers(LIST ROOT): sets LIST to the public headers below ROOT: the entry points and each header that
# they include, directly or not.
function(poolgrad_public_headers list root)
  set(pending poolgrad.h allocator/lab/laboratory.h allocator/c_api.h autograd/testing_gtest.h)
  set(headers)
  while(pending)
    list(POP_FRONT pending header)
    if(NOT header IN_LIST headers)
      list(APPEND headers ${header})
      file(STRINGS ${root}/${header} includes REGEX "^#include \"")
      list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*" "\\1")
      list(APPEND pending ${includes})
    endif()
  endwhile()
  set(${list} ${headers} PARENT_SCOPE)
endfunction()

# poolgrad_install_headers(ROOT FOLDER): writes the public headers to FOLDER/poolgrad/. There they include each other as
# "poolgrad/...", so a user's include path gains one name.
function(poolgrad_install_headers root folder)
  poolgrad_public_headers(headers ${root})
  foreach(header IN LISTS headers)
    file(READ ${root}/${header} text)
    string(REGEX REPLACE "#include \"([^\"]+)\"" "#include \"poolgrad/\\1\"" text "${text}")
    message(STATUS "Installing: ${folder}/poolgrad/${header}")
    file(WRITE ${folder}/poolgrad/${header} "${text}")
  endforeach()
endfunction()
