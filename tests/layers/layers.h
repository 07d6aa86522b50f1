// Checks the arrows between the rooms and the things that have one home (docs/architecture.md), by
// reading source text.
#ifndef KINDLING_TESTS_LAYERS_LAYERS_H_
#define KINDLING_TESTS_LAYERS_LAYERS_H_

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kindling::layers {

struct Violation {
  std::string file;  // relative to the repository's root
  int line = 0;      // from 1
  std::string what;
};

// `text` with comments blanked out, and the contents of string and character literals too if
// `literals` says so. Line breaks stay where they are.
enum class Literals { kKeep, kBlank };
std::string StripComments(std::string_view text, Literals literals);

// Room of a file: "include" for include/kindling, else the name of its folder in conventions; empty
// for files that no rule speaks about.
std::string RoomOf(std::string_view path);

// Violations in one file. `path` is relative to the repository's root and decides the room.
std::vector<Violation> CheckFile(std::string_view path, std::string_view text);

// Violations in all C++ and Python files of the rooms below `root`; `num_files` counts the files.
std::vector<Violation> CheckTree(const std::filesystem::path& root, int* num_files);

}  // namespace kindling::layers

#endif  // KINDLING_TESTS_LAYERS_LAYERS_H_
