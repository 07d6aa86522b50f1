# Compile flags and helper functions shared by the rooms, the tests and the front doors.

if(NOT KINDLING_SANITIZE MATCHES "^(|address|thread)$")
  message(FATAL_ERROR "KINDLING_SANITIZE: expected empty, address or thread, got ${KINDLING_SANITIZE}")
endif()

# Flags of our own code; third-party code that a front door compiles does not get them.
add_library(kindling_flags INTERFACE)
target_compile_options(kindling_flags INTERFACE
  -Wall -Wextra $<$<BOOL:${KINDLING_WERROR}>:-Werror>
  # GCC 12 sees an overlap in "literal" + std::string that is not there (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # Bit reproducibility: fused multiply-adds are written out, never chosen by the compiler.
  -ffp-contract=off)

if(KINDLING_SANITIZE STREQUAL "address")
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(KINDLING_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread -fno-omit-frame-pointer)
endif()
if(KINDLING_SANITIZE)
  add_compile_options(${sanitizers})
  add_link_options(${sanitizers})
endif()

# kindling_add_room(NAME SOURCES file... [ROOMS room...] [LIBRARIES target...])
# Makes the target kindling_<NAME> of src/<NAME>. ROOMS are the rooms whose headers it may include;
# they carry the rooms below them along.
function(kindling_add_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;ROOMS;LIBRARIES")
  list(TRANSFORM arg_ROOMS PREPEND kindling_)
  add_library(kindling_${name} STATIC ${arg_SOURCES})
  target_include_directories(kindling_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
                                                     ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(kindling_${name} PUBLIC ${arg_ROOMS} ${arg_LIBRARIES}
                                         PRIVATE kindling_flags)
endfunction()
