#include "support/case_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace kindling::test {
namespace {

constexpr std::string_view kSeparator = " / ";
constexpr std::string_view kOperatorNames[] = {"lse", "grad", "teacher", "step"};

// What one word of this file says. Returns false if it cannot be.
bool ReadWord(std::string_view key, std::string_view value, OperatorCase& out) {
  const auto read_bool = [&](std::string_view yes, std::string_view no, bool& flag) {
    flag = value == yes;
    return value == yes || value == no;
  };
  if (key == "loss") return read_bool("yes", "no", out.loss_rows);
  if (key == "softmax") return read_bool("yes", "no", out.softmax_out);
  if (key == "lse") return read_bool("given", "absent", out.teacher_lse);
  if (key == "goal") out.goal = value;
  if (key == "goal") return true;
  if (key == "threads") {
    std::istringstream number{std::string(value)};
    return number >> out.num_threads && number.eof() && out.num_threads >= 1;
  }
  for (const Isa isa :
       {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (IsaName(isa) == value) out.isa = isa;
  }
  return out.isa.has_value();
}

bool IsOwnWord(std::string_view key) {
  for (const std::string_view own : {"threads", "isa", "goal", "loss", "softmax", "lse"}) {
    if (key == own) return true;
  }
  return false;
}

std::optional<OperatorCase> ParseSide(std::string_view text) {
  OperatorCase side;
  std::istringstream words{std::string(text)};
  std::string word;
  words >> word;
  bool known = false;
  for (size_t i = 0; i < std::size(kOperatorNames); ++i) {
    if (word == kOperatorNames[i]) {
      side.op = static_cast<Operator>(i);
      known = true;
    }
  }
  if (!known) return std::nullopt;
  if (side.op == Operator::kStep) {
    side.loss_rows = true;
    side.softmax_out = false;
  }
  std::string rest;
  while (words >> word) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = std::string_view(word).substr(0, equals);
    if (!IsOwnWord(key)) {
      rest += word + " ";
    } else if (equals == word.size() ||
               !ReadWord(key, std::string_view(word).substr(equals + 1), side)) {
      return std::nullopt;
    }
  }
  std::optional<Case> spec = ParseCase(rest);
  if (!spec) return std::nullopt;
  side.spec = *std::move(spec);
  return side;
}

}  // namespace

std::string_view OperatorName(Operator op) { return kOperatorNames[static_cast<int>(op)]; }

std::optional<CaseLine> ParseCaseLine(std::string_view line) {
  CaseLine out;
  out.text = line;
  const size_t separator = line.find(kSeparator);
  std::vector<std::string_view> sides = {line.substr(0, separator)};
  if (separator != line.npos) sides.push_back(line.substr(separator + kSeparator.size()));
  for (const std::string_view text : sides) {
    std::optional<OperatorCase> side = ParseSide(text);
    if (!side) return std::nullopt;
    out.sides.push_back(*std::move(side));
  }
  return out;
}

CaseFile ReadCaseFile(const std::string& path) {
  CaseFile file;
  std::ifstream stream(path);
  if (!stream) file.error = path + ": expected a file of problems, got none";
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    std::optional<CaseLine> parsed = ParseCaseLine(line);
    if (!parsed) {
      file.error = path + ":" + std::to_string(number) + ": expected a problem, got " + line;
      break;
    }
    file.lines.push_back(*std::move(parsed));
  }
  return file;
}

std::string CasesFolder() { return KINDLING_CASES_FOLDER; }

}  // namespace kindling::test
