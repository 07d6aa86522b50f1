# The library exports the functions that its headers declare, and nothing else.
cmake_minimum_required(VERSION 3.22)

file(GLOB_RECURSE headers ${HEADERS}/*.h)
set(declared "")
foreach(header IN LISTS headers)
  file(READ ${header} text)
  string(REGEX REPLACE "/\\*([^*]|\\*[^/])*\\*/" "" text "${text}")  # comments
  string(REGEX MATCHALL "(acl|aclrt|aclnn)[A-Z][A-Za-z0-9]*\\(" names "${text}")
  list(TRANSFORM names REPLACE "\\($" "")
  list(APPEND declared ${names})
endforeach()
list(SORT declared)
list(REMOVE_DUPLICATES declared)

execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
                OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" exported "${output}")
list(TRANSFORM exported REPLACE " .*$" "")
list(SORT exported)

if(NOT exported STREQUAL declared)
  message(FATAL_ERROR "declared: ${declared}\nexported: ${exported}")
endif()
list(LENGTH exported count)
if(count LESS 48)
  message(FATAL_ERROR "expected at least 48 functions, got ${count}")
endif()
message("capi_exports_test: ${count} functions")
