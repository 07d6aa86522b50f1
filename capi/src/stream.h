// Streams: in-order queues of tasks, each with a thread of its own.
#ifndef KINDLING_CAPI_SRC_STREAM_H_
#define KINDLING_CAPI_SRC_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "acl/acl.h"
#include "errors.h"

namespace kindling::acl {

// Runs on a stream's thread; a failure appears where the stream is synchronised.
using Task = std::function<Failure()>;

class Stream {
 public:
  Stream();
  // Runs what is queued, then ends the thread.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Enqueue(Task task);
  // Waits until all that was queued is done.
  void Wait();
  // The same. Returns the first failure since the last call; the
  // tasks behind it were dropped.
  Failure Synchronize();

 private:
  void Loop();
  static Failure RunOne(const Task& task);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // guarded by mutex_, as what follows; the front one may be running
  Failure failure_;
  bool ends_ = false;
  std::thread thread_;
};

// Queues a task on the stream of a handle, the default one for null. Errors:
// ACL_ERROR_INVALID_RESOURCE_HANDLE.
Failure Enqueue(aclrtStream stream, Task task);

// Waits for all streams and returns the failure of one that has any; those of others stay for who
// synchronises them. Destroys the streams that have handles if asked.
enum class Streams { kKeep, kDestroy };
Failure SynchronizeAll(Streams streams);

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_STREAM_H_
