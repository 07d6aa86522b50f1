#include "layers/layers.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace kindling::layers {
namespace {

using Names = std::set<std::string, std::less<>>;

// Arrows: what each room may include besides itself and include/kindling.
const std::map<std::string, Names, std::less<>> kArrows = {
    {"include", {}},
    {"base", {}},
    {"problem", {"base"}},
    {"plan", {"base", "problem"}},
    {"kernels", {"base", "problem"}},
    {"reference", {"base", "problem"}},
    {"ops", {"base", "problem", "plan", "kernels", "reference"}},
    {"capi", {"base", "problem", "plan", "kernels", "reference", "ops"}},
    {"python", {"base", "problem", "plan", "kernels", "reference", "ops"}},
    {"tests",
     {"base", "problem", "plan", "kernels", "reference", "ops", "capi", "python", "bench"}},
    {"bench",
     {"base", "problem", "plan", "kernels", "reference", "ops", "capi", "python", "tests"}},
};

Names AllRoomsBut(const Names& excluded) {
  Names rooms;
  for (const auto& [room, unused] : kArrows) {
    if (!excluded.contains(room)) rooms.insert(room);
  }
  return rooms;
}

// A thing with one home: its headers and its words may appear in the rooms `homes` only. A pattern
// that ends in '*' matches a prefix, one that begins with '*' a suffix.
struct OneHome {
  std::string what;
  std::vector<std::string> headers;
  std::vector<std::string> words;
  Names homes;
};

const std::vector<OneHome>& OneHomes() {
  static const std::vector<OneHome> kOneHomes = {
      {"intrinsics",
       {"*intrin.h", "arm_neon.h", "arm_sve.h"},
       {"_mm_*", "_mm256_*", "_mm512_*", "__m128*", "__m256*", "__m512*", "__builtin_ia32_*"},
       {"kernels", "tests", "bench"}},
      {"nanobind", {"nanobind/*"}, {"nanobind"}, {"python"}},
      {"XLA's interface", {"xla/*"}, {"XLA_FFI_*"}, {"python"}},
      {"threads",
       {"thread", "future", "stop_token", "pthread.h", "threads.h", "omp.h"},
       {"std::thread", "std::jthread", "std::this_thread", "std::async", "pthread_*"},
       {"ops", "capi", "tests", "bench"}},
      {"printing",
       {"iostream", "print", "syncstream"},
       {"std::cout", "std::cerr", "std::clog", "printf", "fprintf", "vprintf", "vfprintf", "puts",
        "fputs", "putchar", "perror"},
       {"capi", "python", "tests", "bench"}},
      {"the environment",
       {},
       {"getenv", "secure_getenv", "setenv", "putenv"},
       {"capi", "python", "tests", "bench"}},
      {"ending the process",
       {},
       {"abort", "exit", "_exit", "_Exit", "quick_exit", "std::terminate"},
       {"tests", "bench"}},
      {"floating point",
       {"cmath", "math.h", "cfloat", "float.h"},
       {"float", "double"},
       AllRoomsBut({"plan"})},
  };
  return kOneHomes;
}

bool IsWordChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

bool MatchesPattern(std::string_view text, std::string_view pattern) {
  if (pattern.front() == '*') return text.ends_with(pattern.substr(1));
  if (pattern.back() == '*') return text.starts_with(pattern.substr(0, pattern.size() - 1));
  return text == pattern;
}

// Whether `line` holds `word` as a whole word, or as the beginning of one if it ends in '*'.
bool HasWord(std::string_view line, std::string_view word) {
  const bool is_prefix = word.back() == '*';
  if (is_prefix) word.remove_suffix(1);
  for (size_t at = line.find(word); at != line.npos; at = line.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !IsWordChar(line[at - 1]);
    const bool ends = is_prefix || end == line.size() || !IsWordChar(line[end]);
    if (begins && ends) return true;
  }
  return false;
}

struct Include {
  std::string target;
  bool is_angled = false;
};

// The include of a line without comments; an empty target if there is none.
Include ParseInclude(std::string_view line) {
  const auto skip_spaces = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip_spaces();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_spaces();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(7);
  skip_spaces();
  if (line.empty() || (line.front() != '"' && line.front() != '<')) return {};
  const bool is_angled = line.front() == '<';
  const size_t end = line.find(is_angled ? '>' : '"', 1);
  if (end == line.npos) return {};
  return {std::string(line.substr(1, end - 1)), is_angled};
}

// Room that a quoted include leads to: by a path from src/, from the root, or from the file's own
// folder. "?" if it leads to none.
std::string RoomOfInclude(std::string_view path, std::string_view room, std::string_view target) {
  if (target.starts_with("kindling/")) return "include";
  for (const std::string_view vendors : {"acl/", "aclnn/", "aclnnop/"}) {
    if (target.starts_with(vendors)) return "capi";
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (target.starts_with("../") || target.find('/') == target.npos) {
    return RoomOf((folder / target).lexically_normal().generic_string());
  }
  for (const std::string_view base : {"src/", ""}) {
    const std::string found = RoomOf(std::string(base) + std::string(target));
    if (!found.empty()) return found;
  }
  return room == "tests" || room == "bench" ? "tests" : "?";
}

// What an include breaks, or nothing.
std::string CheckInclude(std::string_view path, std::string_view room, const Include& include) {
  const std::string& target = include.target;
  for (const OneHome& thing : OneHomes()) {
    if (thing.homes.contains(room)) continue;
    for (const std::string& header : thing.headers) {
      if (MatchesPattern(target, header)) return thing.what + " (" + target + ")";
    }
  }
  if (include.is_angled && !target.starts_with("kindling/")) {
    const bool is_third_party = target.find('/') != target.npos && !target.starts_with("sys/");
    const bool is_core = room != "python" && room != "tests" && room != "bench";
    if (is_core && is_third_party) return "a third-party header (" + target + ")";
    if (room == "include" && target.find('.') != target.npos) {
      return "a header that is not the C++ standard library's (" + target + ")";
    }
    return {};
  }
  const std::string other = RoomOfInclude(path, room, target);
  if (other == room || other == "include") return {};
  if (kArrows.find(room)->second.contains(other)) return {};
  return "an arrow from " + std::string(room) + " to " + other + " (" + target + ")";
}

// Vendor names live at the doors that speak the vendor's language; comments count.
bool MayNameVendor(std::string_view path, std::string_view room) {
  return room == "capi" || room == "tests" || room == "bench" ||
         path.starts_with("python/kindling/torch") || path.starts_with("python/kindling/compat");
}

// Calls visit(line number, line) for each line of `text`.
template <class Visit>
void ForEachLine(std::string_view text, Visit visit) {
  int number = 1;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(number++, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool HasSuffix(std::string_view path, std::initializer_list<std::string_view> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [path](std::string_view suffix) { return path.ends_with(suffix); });
}

bool IsCpp(std::string_view path) {
  return HasSuffix(path, {".h", ".cc", ".c", ".hpp", ".cpp", ".inc"});
}

bool IsPython(std::string_view path) { return HasSuffix(path, {".py", ".pyi"}); }

}  // namespace

std::string StripComments(std::string_view text, Literals literals) {
  std::string out(text);
  // Blanks [begin, end) and returns end.
  const auto blank = [&out](size_t begin, size_t end) {
    end = std::min(end, out.size());
    std::replace_if(out.begin() + begin, out.begin() + end, [](char c) { return c != '\n'; }, ' ');
    return end;
  };
  // Past the `closing` that is found from `from` on.
  const auto after = [&text](std::string_view closing, size_t from) {
    const size_t at = text.find(closing, from);
    return at == text.npos ? text.size() : at + closing.size();
  };
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    const bool is_in_word = at > 0 && IsWordChar(text[at - 1]);
    if (rest.starts_with("//")) {
      at = blank(at, std::min(text.find('\n', at), text.size()));
    } else if (rest.starts_with("/*")) {
      at = blank(at, after("*/", at + 2));
    } else if (rest.starts_with("R\"") && !is_in_word) {
      const size_t open = std::min(text.find('(', at), text.size());
      const std::string closing =
          ")" + std::string(text.substr(at + 2, open - std::min(open, at + 2))) + "\"";
      const size_t end = after(closing, open);
      at = literals == Literals::kBlank ? blank(at, end) : end;
    } else if (rest.front() == '"' || (rest.front() == '\'' && !is_in_word)) {
      size_t end = at + 1;
      while (end < text.size() && text[end] != rest.front() && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
      }
      end = std::min(end + 1, text.size());
      if (literals == Literals::kBlank) blank(at + 1, end - 1);
      at = end;
    } else {
      ++at;
    }
  }
  return out;
}

std::string RoomOf(std::string_view path) {
  if (path.starts_with("include/kindling/")) return "include";
  if (path.starts_with("src/")) path.remove_prefix(4);
  const std::string_view top = path.substr(0, std::min(path.find('/'), path.size()));
  return kArrows.contains(top) && top != "include" ? std::string(top) : "";
}

std::vector<Violation> CheckFile(std::string_view path, std::string_view text) {
  std::vector<Violation> violations;
  const std::string room = RoomOf(path);
  if (room.empty()) return violations;
  const auto report = [&](int line, std::string what) {
    violations.push_back({std::string(path), line, std::move(what)});
  };

  if (!MayNameVendor(path, room)) {
    ForEachLine(text, [&](int number, std::string_view line) {
      for (const std::string_view name : {"aclnn", "aclrt", "aclTensor"}) {
        if (line.find(name) != line.npos)
          report(number, "a vendor name (" + std::string(name) + ")");
      }
    });
  }
  if (path.starts_with("python/kindling/cli")) {
    ForEachLine(text, [&](int number, std::string_view line) {
      if (HasWord(line, "_core")) report(number, "the command reaches past the public package");
    });
  }
  if (!IsCpp(path)) return violations;

  ForEachLine(StripComments(text, Literals::kKeep), [&](int number, std::string_view line) {
    const Include include = ParseInclude(line);
    if (include.target.empty()) return;
    std::string what = CheckInclude(path, room, include);
    if (!what.empty()) report(number, std::move(what));
  });
  ForEachLine(StripComments(text, Literals::kBlank), [&](int number, std::string_view line) {
    if (!ParseInclude(line).target.empty()) return;
    for (const OneHome& thing : OneHomes()) {
      if (thing.homes.contains(room)) continue;
      for (const std::string& word : thing.words) {
        if (HasWord(line, word)) report(number, thing.what + " (" + word + ")");
      }
    }
  });
  return violations;
}

std::vector<Violation> CheckTree(const std::filesystem::path& root, int* num_files) {
  std::vector<Violation> violations;
  *num_files = 0;
  for (const char* folder : {"include", "src", "capi", "python", "tests", "bench"}) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string path = entry.path().lexically_relative(root).generic_string();
      if (!entry.is_regular_file() || !(IsCpp(path) || IsPython(path))) continue;
      std::ifstream stream(entry.path());
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      const std::vector<Violation> found = CheckFile(path, text);
      violations.insert(violations.end(), found.begin(), found.end());
      ++*num_files;
    }
  }
  return violations;
}

}  // namespace kindling::layers
