#include "layers/layers.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace kindling::layers {
namespace {

// The violations of one file as "line: what", or "" for none.
std::string Check(std::string_view path, std::string_view text) {
  std::string out;
  for (const Violation& violation : CheckFile(path, text)) {
    if (!out.empty()) out += "; ";
    out += std::to_string(violation.line) + ": " + violation.what;
  }
  return out;
}

TEST(Tree, KeepsTheRules) {
  int num_files = 0;
  for (const Violation& violation : CheckTree(KINDLING_SOURCE_DIR, &num_files)) {
    ADD_FAILURE() << violation.file << ":" << violation.line << ": " << violation.what;
  }
  EXPECT_GE(num_files, 10) << "found too little of the tree at " << KINDLING_SOURCE_DIR;
}

TEST(Arrows, DownIsAllowed) {
  EXPECT_EQ(Check("src/ops/a.cc", "#include \"ops/a.h\"\n#include \"plan/plan.h\"\n"), "");
  EXPECT_EQ(Check("src/ops/a.cc", "#include \"reference/r.h\"\n#include \"base/b.h\"\n"), "");
  EXPECT_EQ(Check("src/problem/a.cc", "#include \"base/b.h\"\n#include \"sibling.h\"\n"), "");
  EXPECT_EQ(Check("src/base/a.h", "#include <vector>\n#include \"kindling/status.h\"\n"), "");
  EXPECT_EQ(Check("capi/a.cc", "#include \"ops/a.h\"\n#include <thread>\n"), "");
  EXPECT_EQ(Check("capi/src/a.cc", "#include \"aclnnop/a.h\"\n#include \"acl/acl.h\"\n"), "");
  EXPECT_EQ(Check("tests/plan/a_test.cc",
                  "#include \"plan/plan.h\"\n#include \"support/random.h\"\n"
                  "#include <gtest/gtest.h>\n"),
            "");
}

TEST(Arrows, UpAndSidewaysAreNot) {
  EXPECT_EQ(Check("src/base/a.cc", "\n#include \"problem/p.h\"\n"),
            "2: an arrow from base to problem (problem/p.h)");
  EXPECT_EQ(Check("src/plan/a.cc", "#include \"kernels/k.h\"\n"),
            "1: an arrow from plan to kernels (kernels/k.h)");
  EXPECT_EQ(Check("src/kernels/a.cc", "#  include \"reference/r.h\"  // why\n"),
            "1: an arrow from kernels to reference (reference/r.h)");
  EXPECT_EQ(Check("src/reference/a.cc", "#include \"src/plan/p.h\"\n"),
            "1: an arrow from reference to plan (src/plan/p.h)");
  EXPECT_EQ(Check("src/problem/a.cc", "#include \"../ops/o.h\"\n"),
            "1: an arrow from problem to ops (../ops/o.h)");
  EXPECT_EQ(Check("python/src/a.cc", "#include \"capi/acl.h\"\n"),
            "1: an arrow from python to capi (capi/acl.h)");
  EXPECT_EQ(Check("src/ops/a.cc", "#include \"acl/acl.h\"\n"),
            "1: an arrow from ops to capi (acl/acl.h)");
  EXPECT_EQ(Check("capi/a.cc", "#include \"python/src/a.h\"\n"),
            "1: an arrow from capi to python (python/src/a.h)");
  EXPECT_EQ(Check("src/ops/a.cc", "#include \"tests/support/random.h\"\n"),
            "1: an arrow from ops to tests (tests/support/random.h)");
  EXPECT_EQ(Check("src/ops/a.cc", "#include \"elsewhere/x.h\"\n"),
            "1: an arrow from ops to ? (elsewhere/x.h)");
}

TEST(PublicHeaders, UseOnlyTheStandardLibraryAndEachOther) {
  EXPECT_EQ(Check("include/kindling/a.h", "#include <span>\n#include \"kindling/b.h\"\n"), "");
  EXPECT_EQ(Check("include/kindling/a.h", "#include \"base/message.h\"\n"),
            "1: an arrow from include to base (base/message.h)");
  EXPECT_EQ(Check("include/kindling/a.h", "#include <unistd.h>\n"),
            "1: a header that is not the C++ standard library's (unistd.h)");
  EXPECT_EQ(Check("src/ops/a.cc", "#include <gtest/gtest.h>\n"),
            "1: a third-party header (gtest/gtest.h)");
}

TEST(OneHome, Intrinsics) {
  EXPECT_EQ(Check("src/kernels/a.cc", "#include <immintrin.h>\n__m256 x = _mm256_set1_ps(1);\n"),
            "");
  EXPECT_EQ(Check("src/ops/a.cc", "#include <immintrin.h>\n"), "1: intrinsics (immintrin.h)");
  EXPECT_EQ(Check("src/base/a.h", "auto x = _mm256_cvtph_ps(y);\n"), "1: intrinsics (_mm256_*)");
  EXPECT_EQ(Check("src/base/a.h", "#include <arm_neon.h>\n"), "1: intrinsics (arm_neon.h)");
}

TEST(OneHome, Nanobind) {
  EXPECT_EQ(Check("python/src/a.cc", "#include <nanobind/nanobind.h>\n"), "");
  EXPECT_EQ(Check("src/ops/a.cc", "#include <nanobind/nanobind.h>\n"),
            "1: nanobind (nanobind/nanobind.h)");
}

TEST(OneHome, XlasInterface) {
  EXPECT_EQ(Check("python/src/a.cc", "#include <xla/ffi/api/ffi.h>\n"), "");
  EXPECT_EQ(Check("capi/a.cc", "#include <xla/ffi/api/ffi.h>\n"),
            "1: XLA's interface (xla/ffi/api/ffi.h)");
  EXPECT_EQ(Check("src/ops/a.h", "XLA_FFI_Error* error;\n"), "1: XLA's interface (XLA_FFI_*)");
}

TEST(OneHome, VendorNames) {
  EXPECT_EQ(Check("capi/a.cc", "int aclnnInit();\n"), "");
  EXPECT_EQ(Check("python/kindling/torch.py", "name = 'aclnnX'\n"), "");
  EXPECT_EQ(Check("python/kindling/compat/__init__.py", "name = 'aclnnX'\n"), "");
  EXPECT_EQ(Check("src/ops/a.cc", "// as aclnnX does\n"), "1: a vendor name (aclnn)");
  EXPECT_EQ(Check("include/kindling/a.h", "struct aclTensor;\n"), "1: a vendor name (aclTensor)");
  EXPECT_EQ(Check("python/kindling/__init__.py", "x = 1\naclrt = 2\n"), "2: a vendor name (aclrt)");
}

TEST(OneHome, Threads) {
  EXPECT_EQ(Check("src/ops/a.cc", "#include <thread>\nstd::thread worker;\n"), "");
  EXPECT_EQ(Check("src/kernels/a.cc", "#include <thread>\n"), "1: threads (thread)");
  EXPECT_EQ(Check("src/plan/a.cc", "int n = std::thread::hardware_concurrency();\n"),
            "1: threads (std::thread)");
  EXPECT_EQ(Check("python/src/a.cc", "pthread_create(&id);\n"), "1: threads (pthread_*)");
  EXPECT_EQ(Check("src/plan/a.cc", "int num_threads = 1;\n#include <mutex>\n"), "");
}

TEST(OneHome, PrintingAndEnvironment) {
  EXPECT_EQ(Check("bench/a.cc", "#include <iostream>\nint main() { printf(\"\"); exit(1); }\n"),
            "");
  EXPECT_EQ(Check("src/base/a.cc", "#include <iostream>\n"), "1: printing (iostream)");
  EXPECT_EQ(Check("src/base/a.cc", "std::fprintf(stderr, \"\");\n"), "1: printing (fprintf)");
  EXPECT_EQ(Check("src/base/a.cc", "std::snprintf(buffer, 8, \"printf\");\n"), "");
  EXPECT_EQ(Check("src/ops/a.cc", "std::cerr << 1;\n"), "1: printing (std::cerr)");
  EXPECT_EQ(Check("src/ops/a.cc", "std::getenv(\"HOME\");\n"), "1: the environment (getenv)");
}

TEST(OneHome, EndingTheProcess) {
  EXPECT_EQ(Check("src/ops/a.cc", "std::abort();\n"), "1: ending the process (abort)");
  EXPECT_EQ(Check("capi/a.cc", "std::exit(1);\n"), "1: ending the process (exit)");
  EXPECT_EQ(Check("src/ops/a.cc", "std::atexit(f);\n"), "");
}

TEST(OneHome, NoFloatsInPlan) {
  EXPECT_EQ(Check("src/kernels/a.cc", "#include <cmath>\nfloat x;\n"), "");
  EXPECT_EQ(Check("src/plan/a.cc", "double x;\n"), "1: floating point (double)");
  EXPECT_EQ(Check("src/plan/a.h", "std::vector<float> x;\n"), "1: floating point (float)");
  EXPECT_EQ(Check("src/plan/a.h", "#include <cmath>\n"), "1: floating point (cmath)");
  EXPECT_EQ(Check("src/plan/a.h", "// no float here\nint floats; /* nor\ndouble */\n"), "");
}

TEST(OneHome, TheCommandUsesThePublicPackage) {
  EXPECT_EQ(Check("python/kindling/cli.py", "import kindling\n"), "");
  EXPECT_EQ(Check("python/kindling/cli.py", "from kindling import _core\n"),
            "1: the command reaches past the public package");
}

TEST(StripComments, KeepsCodeAndLineBreaks) {
  EXPECT_EQ(StripComments("a // b\nc", Literals::kBlank), "a     \nc");
  EXPECT_EQ(StripComments("a /* b\n */ c", Literals::kBlank), "a     \n    c");
  EXPECT_EQ(StripComments("\"// x\" y", Literals::kKeep), "\"// x\" y");
  EXPECT_EQ(StripComments("\"a\\\"b\" y", Literals::kBlank), "\"    \" y");
  EXPECT_EQ(StripComments("'\"' x // y", Literals::kBlank), "' ' x     ");
  EXPECT_EQ(StripComments("1'000 exit", Literals::kBlank), "1'000 exit");
  EXPECT_EQ(StripComments("R\"(\" // )\" x", Literals::kBlank), "           x");
  EXPECT_EQ(StripComments("/* open", Literals::kBlank), "       ");
}

TEST(RoomOf, NamesTheFolder) {
  EXPECT_EQ(RoomOf("include/kindling/status.h"), "include");
  EXPECT_EQ(RoomOf("src/plan/split.cc"), "plan");
  EXPECT_EQ(RoomOf("python/src/module.cc"), "python");
  EXPECT_EQ(RoomOf("cmake/x.cc"), "");
  EXPECT_EQ(RoomOf("examples/plan/x.cc"), "");
}

}  // namespace
}  // namespace kindling::layers
