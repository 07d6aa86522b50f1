#include "executor.h"

#include <memory>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/message.h"
#include "handles.h"
#include "stream.h"

namespace kindling::acl {
namespace {

HandleTable<Executor>& Table() {
  static auto* table = new HandleTable<Executor>(4);
  return *table;
}

Failure Spent() {
  return {ACLNN_ERR_PARAM_INVALID,
          "executor: expected one of phase 1 that has not run, got one that is spent or none"};
}

Failure CheckWorkspace(const Executor& executor, const void* workspace, uint64_t size) {
  const auto needed = static_cast<uint64_t>(executor.workspace_bytes);
  if (size < needed) {
    return {ACLNN_ERR_PARAM_INVALID, Concat("workspaceSize: expected >= ", needed, ", got ", size)};
  }
  if (needed == 0) return {};
  if (workspace == nullptr) {
    return {ACLNN_ERR_PARAM_NULLPTR,
            Concat("workspace: expected ", needed, " bytes of memory, got null")};
  }
  if (reinterpret_cast<uintptr_t>(workspace) % kAlignment != 0) {
    return {ACLNN_ERR_PARAM_INVALID, Concat("workspace: expected an address aligned to ",
                                            int64_t{kAlignment}, " bytes, got one that is not")};
  }
  return {};
}

}  // namespace

Failure Prepare(std::string_view op, uint64_t* workspace_size, aclOpExecutor** executor,
                const std::function<Failure(Executor& executor)>& prepare) {
  if (workspace_size == nullptr) {
    return {ACLNN_ERR_INNER_NULLPTR, "workspaceSize: expected an address, got null"};
  }
  if (executor == nullptr) {
    return {ACLNN_ERR_INNER_NULLPTR, "executor: expected an address, got null"};
  }
  auto prepared = std::make_shared<Executor>();
  prepared->op = op;
  prepared->num_threads = GetNumThreads();
  Failure failure = prepare(*prepared);
  if (failure.code != 0) return failure;
  if (prepared->workspace_bytes == INT64_MAX) {
    return {ACLNN_ERR_PARAM_INVALID,
            "q: expected dims whose workspace fits into memory, got larger ones"};
  }
  *workspace_size = static_cast<uint64_t>(prepared->workspace_bytes);
  *executor = static_cast<aclOpExecutor*>(Table().Add(std::move(prepared)));
  return {};
}

Failure Launch(std::string_view op, void* workspace, uint64_t workspace_size,
               aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr) {
    return {ACLNN_ERR_INNER_NULLPTR, "executor: expected one of phase 1, got null"};
  }
  std::shared_ptr<Executor> found = Table().Find(executor);
  if (found == nullptr) return Spent();
  if (found->op != op) {
    return {ACLNN_ERR_PARAM_INVALID,
            Concat("executor: expected one of ", op, "GetWorkspaceSize, got one of ", found->op)};
  }
  Failure failure = CheckWorkspace(*found, workspace, workspace_size);
  if (failure.code != 0) return failure;
  // Of callers that use a single-use executor at once, one gets it.
  if (!found->repeatable && Table().Take(executor) == nullptr) return Spent();
  failure = Enqueue(stream, [found, workspace, workspace_size]() -> Failure {
    RunOptions options;
    options.num_threads = found->num_threads;
    if (found->workspace_bytes > 0) {
      options.workspace = workspace;
      options.workspace_bytes = workspace_size;
    }
    return FailureOf(found->run(options));
  });
  if (failure.code != 0) failure.code = ACLNN_ERR_PARAM_INVALID;
  return failure;
}

}  // namespace kindling::acl

using kindling::acl::Failure;
using kindling::acl::Guarded;

extern "C" {

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return Guarded(ACLNN_ERR_INNER, [&]() -> Failure {
    if (executor == nullptr) {
      return {ACLNN_ERR_PARAM_NULLPTR, "executor: expected one of phase 1, got null"};
    }
    const auto found = kindling::acl::Table().Find(executor);
    if (found == nullptr) return kindling::acl::Spent();
    found->repeatable = true;
    return {};
  });
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return Guarded(ACLNN_ERR_INNER, [&]() -> Failure {
    if (executor == nullptr) {
      return {ACLNN_ERR_PARAM_NULLPTR, "executor: expected one of phase 1, got null"};
    }
    if (kindling::acl::Table().Take(executor) == nullptr) return kindling::acl::Spent();
    return {};
  });
}

}  // extern "C"
