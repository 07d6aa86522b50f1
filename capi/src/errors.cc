#include "errors.h"

#include "acl/acl.h"

namespace kindling::acl {
namespace {

struct Messages {
  std::string recent;
  std::string handed_out;
};

Messages& ThreadMessages() {
  thread_local Messages messages;
  return messages;
}

}  // namespace

Failure FailureOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return {};
    case StatusCode::kInvalidArgument:
    case StatusCode::kInvalidDtype:
      return {ACLNN_ERR_PARAM_INVALID, status.message()};
    case StatusCode::kOutOfMemory:
      return {ACLNN_ERR_RUNTIME_ERROR, status.message()};
  }
  return {ACLNN_ERR_INNER, status.message()};
}

int32_t Report(const Failure& failure) noexcept {
  if (failure.code == 0) return 0;
  try {
    ThreadMessages().recent = failure.message.empty() ? "out of memory" : failure.message;
  } catch (...) {  // the code alone has to do
  }
  return failure.code;
}

const char* TakeRecentMessage() noexcept {
  try {
    Messages& messages = ThreadMessages();
    if (messages.recent.empty()) return nullptr;
    messages.handed_out.swap(messages.recent);
    messages.recent.clear();
    return messages.handed_out.c_str();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace kindling::acl
