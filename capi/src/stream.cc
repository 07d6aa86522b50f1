#include "stream.h"

#include <utility>
#include <vector>

#include "handles.h"

namespace kindling::acl {
namespace {

HandleTable<Stream>& Table() {
  static auto* table = new HandleTable<Stream>(1);
  return *table;
}

// Made at its first use and never destroyed: its thread sleeps until the process ends.
const std::shared_ptr<Stream>& DefaultStream() {
  static auto* stream = new std::shared_ptr<Stream>(std::make_shared<Stream>());
  return *stream;
}

std::shared_ptr<Stream> FindStream(aclrtStream handle) {
  return handle == nullptr ? DefaultStream() : Table().Find(handle);
}

Failure UnknownStream() {
  return {ACL_ERROR_INVALID_RESOURCE_HANDLE,
          "stream: expected a stream that exists or null, got another address"};
}

}  // namespace

Stream::Stream() : thread_([this] { Loop(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Enqueue(Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Stream::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty(); });
}

Failure Stream::Synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty(); });
  return std::exchange(failure_, Failure());
}

Failure Stream::RunOne(const Task& task) {
  try {
    return task();
  } catch (const std::exception& error) {
    return {ACLNN_ERR_RUNTIME_ERROR, error.what()};
  }
}

void Stream::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    // Only this thread takes tasks away, and adding others leaves the front one where it is.
    const Task* task = failure_.code == 0 ? &tasks_.front() : nullptr;
    lock.unlock();
    Failure failure;
    if (task != nullptr) failure = RunOne(*task);
    lock.lock();
    if (failure.code != 0) failure_ = std::move(failure);
    tasks_.pop_front();
    if (tasks_.empty()) changed_.notify_all();
  }
}

Failure Enqueue(aclrtStream handle, Task task) {
  const std::shared_ptr<Stream> stream = FindStream(handle);
  if (stream == nullptr) return UnknownStream();
  stream->Enqueue(std::move(task));
  return {};
}

Failure SynchronizeAll(Streams streams) {
  std::vector<std::shared_ptr<Stream>> all =
      streams == Streams::kDestroy ? Table().TakeAll() : Table().All();
  all.push_back(DefaultStream());
  Failure first;
  for (const std::shared_ptr<Stream>& stream : all) {
    if (first.code == 0) {
      first = stream->Synchronize();
    } else {
      stream->Wait();
    }
  }
  return first;
}

}  // namespace kindling::acl

using kindling::acl::Failure;
using kindling::acl::Guarded;

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (stream == nullptr)
      return {ACL_ERROR_INVALID_PARAM, "stream: expected an address, got null"};
    *stream = nullptr;
    *stream = kindling::acl::Table().Add(std::make_shared<kindling::acl::Stream>());
    return {};
  });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (kindling::acl::Table().Take(stream) == nullptr) {
      return {ACL_ERROR_INVALID_RESOURCE_HANDLE,
              "stream: expected a stream of aclrtCreateStream that exists, got another address"};
    }
    return {};
  });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    const std::shared_ptr<kindling::acl::Stream> found = kindling::acl::FindStream(stream);
    return found == nullptr ? kindling::acl::UnknownStream() : found->Synchronize();
  });
}

aclError aclrtSynchronizeDevice(void) {
  return Guarded(ACL_ERROR_FAILURE,
                 [] { return kindling::acl::SynchronizeAll(kindling::acl::Streams::kKeep); });
}

}  // extern "C"
