// Opaque pointers of the C ABI. They are numbers that are never given out twice and that no
// processor accepts as an address, so a pointer that is none, or none any more, is found to be so.
#ifndef KINDLING_CAPI_SRC_HANDLES_H_
#define KINDLING_CAPI_SRC_HANDLES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kindling::acl {

template <class T>
class HandleTable {
 public:
  // `kind` tells the handles of one table from those of others.
  explicit HandleTable(uint8_t kind) : next_(uint64_t{0x6b} << 56 | uint64_t{kind} << 48) {}

  void* Add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ += kStep;
    objects_.emplace(next_, std::move(object));
    return reinterpret_cast<void*>(static_cast<uintptr_t>(next_));
  }
  // Null if the handle is none of this table.
  std::shared_ptr<T> Find(const void* handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  // As Find; the handle is none afterwards.
  std::shared_ptr<T> Take(const void* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  std::vector<std::shared_ptr<T>> All() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [handle, object] : objects_) all.push_back(object);
    return all;
  }
  std::vector<std::shared_ptr<T>> TakeAll() {
    std::vector<std::shared_ptr<T>> all = All();
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.clear();
    return all;
  }

 private:
  static constexpr uint64_t kStep = 64;

  mutable std::mutex mutex_;
  uint64_t next_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_HANDLES_H_
