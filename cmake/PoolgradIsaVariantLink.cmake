# cmake -DOBJECTS=... -DOUTPUT=... -DLINKER=... -DNM=... -DOBJCOPY=... -P: one relocatable object of several, in which weak
# functions (inline functions, template instances) and weak constants are local. Variables stay common to the program.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    file(REMOVE ${OUTPUT})
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# What the linker would share with other objects: weak functions, and weak or unique constants.
function(list_shared)
  run(${NM} --defined-only --format=sysv ${OUTPUT})
  string(REGEX MATCHALL "[^\n| ]+ *\\|[^\n|]*\\|   W  \\||[^\n| ]+ *\\|[^\n|]*\\|   [Vu]  \\|[^\n]*\\|\\.rodata" shared "${output}")
  list(TRANSFORM shared REPLACE " *\\|.*" "")
  set(shared ${shared} PARENT_SCOPE)
endfunction()

# Sections must not be in groups any more: the linker would still keep one group of each name.
run(${LINKER} -r --force-group-allocation -o ${OUTPUT} ${OBJECTS})
list_shared()
list(JOIN shared "\n" names)
file(WRITE ${OUTPUT}.local "${names}\n")
run(${OBJCOPY} --localize-symbols=${OUTPUT}.local ${OUTPUT})
list_shared()
if(shared)
  file(REMOVE ${OUTPUT})
  message(FATAL_ERROR "still shared with the program: ${shared}")
endif()
