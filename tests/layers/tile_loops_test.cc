// The innermost loops of the matrix products, as the compiler has left them: all products of a
// step, little else, and nothing on the stack. A compiler that spills or does not unroll costs a
// third of the speed without any test of results noticing.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace kindling {
namespace {

struct Instruction {
  uint64_t address = 0;
  std::string text;
};

using Function = std::vector<Instruction>;

// The functions of an object file, each with addresses of its own.
std::vector<Function> Disassemble(const std::string& object) {
  const std::string command =
      std::string(KINDLING_OBJDUMP) + " -d --no-show-raw-insn '" + object + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<Function> functions;
  std::array<char, 4096> buffer;
  while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) {
    const std::string line(buffer.data());
    if (line.find(">:") != std::string::npos) functions.emplace_back();
    const size_t colon = line.find(":\t");
    if (functions.empty() || colon == std::string::npos) continue;
    functions.back().push_back({std::stoull(line, nullptr, 16), line.substr(colon + 2)});
  }
  return functions;
}

// Bodies of loops that contain no other loop: from the target of a backward jump to the jump.
std::vector<Function> InnermostLoops(const Function& function) {
  std::map<uint64_t, size_t> index;
  for (size_t i = 0; i < function.size(); ++i) index[function[i].address] = i;
  std::vector<std::pair<size_t, size_t>> loops;
  for (size_t i = 0; i < function.size(); ++i) {
    std::istringstream words(function[i].text);
    std::string mnemonic;
    std::string target;
    words >> mnemonic >> target;
    if (mnemonic.empty() || mnemonic[0] != 'j' || target.empty()) continue;
    if (target.find_first_not_of("0123456789abcdef") != std::string::npos) continue;
    const auto found = index.find(std::stoull(target, nullptr, 16));
    if (found != index.end() && found->second <= i) loops.emplace_back(found->second, i);
  }
  std::vector<Function> bodies;
  for (const auto& [begin, end] : loops) {
    bool innermost = true;
    for (const auto& other : loops) {
      const bool same = other.first == begin && other.second == end;
      if (!same && other.first >= begin && other.second <= end) innermost = false;
    }
    if (innermost) bodies.emplace_back(function.begin() + begin, function.begin() + end + 1);
  }
  return bodies;
}

int64_t Count(const Function& body, const std::string& text) {
  int64_t count = 0;
  for (const Instruction& instruction : body) {
    count += instruction.text.find(text) != std::string::npos;
  }
  return count;
}

struct Expectation {
  const char* name;
  const char* object;
  const char* product;   // mnemonic
  int64_t num_products;  // of a step of the largest tile: rows x vectors
  int64_t num_loads;     // vectors and broadcasts, or tiles, of a step
};

class TileLoops : public testing::TestWithParam<Expectation> {};

TEST_P(TileLoops, HoldTheirSumsInRegisters) {
  const Expectation& expected = GetParam();
  int64_t num_found = 0;
  for (const Function& function : Disassemble(expected.object)) {
    for (const Function& body : InnermostLoops(function)) {
      const int64_t num_products = Count(body, expected.product);
      if (num_products < expected.num_products) continue;
      if (Count(body, "tilestored") > 0) continue;  // a loop over tiles, for the last step of each
      ++num_found;
      EXPECT_EQ(num_products, expected.num_products);
      EXPECT_EQ(Count(body, "(%rsp") + Count(body, "(%rbp"), 0) << "spilt";
      // Two pointers, a counter, a comparison, a jump, and some room.
      EXPECT_LE(static_cast<int64_t>(body.size()), num_products + expected.num_loads + 8);
    }
  }
  EXPECT_GE(num_found, 1);
}

const Expectation kExpectations[] = {
    {"Avx2", KINDLING_AVX2_OBJECT, "vfmadd231ps", 12, 8},
    {"Avx512", KINDLING_AVX512_OBJECT, "vfmadd231ps", 24, 10},
    {"Avx512Bf16", KINDLING_AVX512_BF16_OBJECT, "vdpbf16ps", 24, 10},
    {"AmxBf16", KINDLING_AMX_BF16_OBJECT, "tdpbf16ps", 4, 4},
};

INSTANTIATE_TEST_SUITE_P(Objects, TileLoops, testing::ValuesIn(kExpectations),
                         [](const testing::TestParamInfo<Expectation>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace kindling
