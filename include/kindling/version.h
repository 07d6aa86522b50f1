// The version of the library, the one place it is written down: CMake and the Python package read
// it from here.
//
// Stability: while the major version is 0, a minor release may change the API and the ABI and the
// SONAME carries major.minor; a patch release changes neither.
#ifndef KINDLING_VERSION_H_
#define KINDLING_VERSION_H_

#define KINDLING_VERSION_MAJOR 0
#define KINDLING_VERSION_MINOR 1
#define KINDLING_VERSION_PATCH 0

#endif  // KINDLING_VERSION_H_
