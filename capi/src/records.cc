#include "records.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/message.h"

namespace kindling::acl {
namespace {

// The teacher's operator uses no more cores than this.
constexpr int64_t kMaxTeacherCores = 36;

MetadataWords FromValues(std::initializer_list<int64_t> values) {
  MetadataWords words{};
  std::transform(values.begin(), values.end(), words.begin(),
                 [](int64_t value) { return static_cast<int32_t>(value); });
  return words;
}

Status Compare(const MetadataWords& got, const MetadataWords& expected) {
  for (size_t word = 0; word < got.size(); ++word) {
    if (got[word] != expected[word]) {
      return InvalidArgument("metadata[", word, "]: expected ", expected[word], ", got ",
                             got[word]);
    }
  }
  return Status();
}

}  // namespace

MetadataWords SplitForLse(int64_t num_rows, int64_t num_cores) {
  if (num_rows < num_cores) return FromValues({num_rows, 0, 1, 0});
  const int64_t rest = num_rows % num_cores;
  const int64_t each = num_rows / num_cores;
  if (rest == 0) return FromValues({num_cores, 0, each, 0});
  return FromValues({rest, num_cores - rest, each + 1, each});
}

MetadataWords SplitForTeacher(int64_t num_rows, int64_t num_cores) {
  if (num_rows == 0) return MetadataWords{};
  const int64_t used = std::min({num_rows, num_cores, kMaxTeacherCores});
  const int64_t rest = num_rows % used;
  return FromValues(
      {num_rows, CeilDiv(num_rows, used), num_rows / used, rest == 0 ? 0 : used - rest, used});
}

Status ValidateLseRecord(const ConstTensor& metadata, int64_t num_rows) {
  const MetadataWords got = LoadWords(metadata);
  // The cores that the record tells of; where it has one row a core or none, there may be more.
  int64_t num_cores = int64_t{got[0]} + got[1];
  if (got[1] == 0 && got[2] == 1) num_cores = num_rows + 1;
  if (num_cores < 1) {
    return InvalidArgument("metadata[0]: expected a count of cores >= 1, got ", got[0]);
  }
  return Compare(got, SplitForLse(num_rows, num_cores));
}

Status ValidateTeacherRecord(const ConstTensor& metadata, int64_t num_rows) {
  const MetadataWords got = LoadWords(metadata);
  const int64_t used = got[4];
  if (num_rows > 0 && (used < 1 || used > std::min(num_rows, kMaxTeacherCores))) {
    return InvalidArgument("metadata[4]: expected in [1, ", std::min(num_rows, kMaxTeacherCores),
                           "], got ", used);
  }
  return Compare(got, SplitForTeacher(num_rows, std::max<int64_t>(used, 1)));
}

}  // namespace kindling::acl
