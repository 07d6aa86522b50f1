# See CMakeLists.txt beside this file, which passes the variables.
cmake_minimum_required(VERSION 3.22)

# run(command...) fails the test if the command fails; leaves its output in `output`.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(result)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

# expect(text regex) fails the test unless the text matches.
function(expect text regex)
  if(NOT text MATCHES "${regex}")
    message(FATAL_ERROR "expected to match ${regex}, got\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/first)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/moved)
set(prefix ${WORK_DIR}/moved)

file(GLOB_RECURSE libraries ${prefix}/libkindling.so*)
file(GLOB_RECURSE acl_libraries ${prefix}/libkindling_acl.so*)
list(GET libraries 0 library)
cmake_path(GET library PARENT_PATH lib_dir)

# The file, its SONAME link and the link that the linker wants, and nothing else beside them.
list(TRANSFORM libraries REPLACE "^.*/" "")
expect("${libraries}" "^libkindling.so;libkindling.so.${ABI_VERSION};libkindling.so.${VERSION}$")
list(TRANSFORM acl_libraries REPLACE "^.*/" "")
set(name libkindling_acl.so)
expect("${acl_libraries}" "^${name};${name}.${ABI_VERSION};${name}.${VERSION}$")
run(${READELF} -dW ${library})
expect("${output}" "SONAME[^\n]*libkindling.so.${ABI_VERSION}\\]")
expect("${output}" "NODELETE")
if(output MATCHES "R(UN)?PATH")
  message(FATAL_ERROR "the installed library carries a search path:\n${output}")
endif()

# Nothing is exported but namespace kindling.
run(${NM} -D --defined-only --format=posix ${library})
string(REGEX MATCHALL "[^\n]+" symbols "${output}")
list(FILTER symbols EXCLUDE REGEX "^_Z(N|NK|T[ISV]N)8kindling")
if(symbols)
  message(FATAL_ERROR "unexpected exports:\n${symbols}")
endif()
expect("${output}" "_ZN8kindling12MakeMetadata")

# No file of the package names the place it was built in or first installed to.
file(GLOB_RECURSE package_files ${prefix}/*.cmake ${prefix}/*.pc)
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  foreach(dir IN ITEMS ${BUILD_DIR} ${WORK_DIR})
    string(FIND "${text}" "${dir}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${dir}")
    endif()
  endforeach()
endforeach()

# find_package.
run(${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/consumer -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release -DVERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer --config Release)
file(GLOB consumer ${WORK_DIR}/consumer/consumer ${WORK_DIR}/consumer/Release/consumer)
run(${consumer})
expect("${output}" "kindling ${VERSION} works")

# pkg-config.
if(NOT PKG_CONFIG)
  message(FATAL_ERROR "pkg-config: not found")
endif()
set(ENV{PKG_CONFIG_PATH} ${lib_dir}/pkgconfig)
run(${PKG_CONFIG} --modversion kindling)
expect("${output}" "^${VERSION}\n$")
run(${PKG_CONFIG} --cflags --libs kindling)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${CXX} -std=c++20 ${CONSUMER_DIR}/consumer.cc ${flags} -o ${WORK_DIR}/consumer_pc)
run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${lib_dir} ${WORK_DIR}/consumer_pc)
expect("${output}" "kindling ${VERSION} works")

# Programs for the device, by find_package and by pkg-config.
run(${CMAKE_COMMAND} -S ${SAMPLES_DIR} -B ${WORK_DIR}/samples -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/samples --config Release)
run(${CMAKE_COMMAND} -E env KINDLING_NUM_CORES=20 ${WORK_DIR}/samples/split_rows)
expect("${output}" "device Ascend950[^\n]*\nrows 16, on the first cores 1 each, on 4 cores 0 each")
run(${WORK_DIR}/samples/train_step)
expect("${output}" "row  0: lse +-inf, softmax sums to 0.00000")
expect("${output}" "row 15: lse [^\n]*, softmax sums to 1.00000")
run(${PKG_CONFIG} --cflags --libs kindling-acl)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${CC} -std=c11 -Wall -Wextra -Werror ${SAMPLES_DIR}/split_rows.c ${flags}
    -o ${WORK_DIR}/split_rows_pc)
run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${lib_dir} ${WORK_DIR}/split_rows_pc)
expect("${output}" "rows 16")
message("install_test: passed with ${prefix}")
