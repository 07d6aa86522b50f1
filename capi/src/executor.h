// What stands between the two phases of an operator.
#ifndef KINDLING_CAPI_SRC_EXECUTOR_H_
#define KINDLING_CAPI_SRC_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "acl/acl.h"
#include "errors.h"
#include "kindling/runtime.h"
#include "kindling/status.h"

namespace kindling::acl {

// One prepared call.
struct Executor {
  std::string_view op;  // its name, a literal
  int64_t workspace_bytes = 0;
  int64_t num_threads = 1;  // what the workspace is for
  std::function<Status(const RunOptions& options)> run;
  std::atomic<bool> repeatable{false};
};

// Phase 1: calls prepare(), which returns a Failure and fills in the executor, and hands out its
// handle and its workspace's size. Checks 1 and 2 of docs/aclnn.md come first.
Failure Prepare(std::string_view op, uint64_t* workspace_size, aclOpExecutor** executor,
                const std::function<Failure(Executor& executor)>& prepare);

// Phase 2.
Failure Launch(std::string_view op, void* workspace, uint64_t workspace_size,
               aclOpExecutor* executor, aclrtStream stream);

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_EXECUTOR_H_
