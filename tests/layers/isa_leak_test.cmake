# See CMakeLists.txt beside this file, which passes the variables.
cmake_minimum_required(VERSION 3.22)

string(REPLACE "|" ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  if(NOT object MATCHES "/kernels_([^/.]+)\\.cc\\." OR CMAKE_MATCH_1 STREQUAL "portable")
    continue()  # compiled for any processor
  endif()
  string(REPLACE "_" "" isa ${CMAKE_MATCH_1})
  execute_process(COMMAND ${NM} --demangle --defined-only ${object}
                  OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" symbols "${output}")
  list(FILTER symbols INCLUDE REGEX "^[0-9a-f]+ [Wu] ")
  # No other file instantiates what has the instruction set in its name.
  list(TRANSFORM symbols TOLOWER)
  list(FILTER symbols EXCLUDE REGEX "${isa}")
  if(symbols)
    list(JOIN symbols "\n" symbols)
    message(FATAL_ERROR "${object} defines mergeable functions:\n${symbols}")
  endif()
  message("isa_leak_test: ${object} passed")
endforeach()
