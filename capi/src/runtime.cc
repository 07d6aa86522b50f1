// Initialisation, the device and its contexts.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "base/message.h"
#include "config.h"
#include "errors.h"
#include "handles.h"
#include "stream.h"

namespace kindling::acl {
namespace {

struct Context {};

HandleTable<Context>& Contexts() {
  static auto* table = new HandleTable<Context>(2);
  return *table;
}

enum class State { kNew, kInitialised, kFinalised };

std::mutex g_state_mutex;
State g_state = State::kNew;  // guarded by g_state_mutex

// Whether this thread has chosen the device, by itself or by way of a context.
thread_local bool t_has_device = false;

Failure CheckDevice(int32_t device) {
  if (device == 0) return {};
  return {ACL_ERROR_INVALID_DEVICE, Concat("deviceId: expected 0, the only device, got ", device)};
}

Failure UnknownContext() {
  return {ACL_ERROR_INVALID_RESOURCE_HANDLE,
          "context: expected a context of aclrtCreateContext that exists, got another address"};
}

}  // namespace
}  // namespace kindling::acl

using kindling::acl::Failure;
using kindling::acl::Guarded;

extern "C" {

aclError aclInit(const char* /*configPath*/) {
  return Guarded(ACL_ERROR_FAILURE, []() -> Failure {
    using kindling::acl::State;
    const std::lock_guard<std::mutex> lock(kindling::acl::g_state_mutex);
    if (kindling::acl::g_state == State::kInitialised) {
      return {ACL_ERROR_REPEAT_INITIALIZE, "aclInit: expected one call, got a second one"};
    }
    const kindling::Status options = kindling::acl::ApplyRuntimeOptions();
    if (!options.ok()) return {ACL_ERROR_INVALID_PARAM, options.message()};
    const auto device = kindling::acl::ConfiguredDevice();
    if (!device.ok()) return {ACL_ERROR_INVALID_PARAM, device.status().message()};
    kindling::acl::g_state = State::kInitialised;
    return {};
  });
}

aclError aclFinalize(void) {
  return Guarded(ACL_ERROR_FAILURE, []() -> Failure {
    using kindling::acl::State;
    {
      const std::lock_guard<std::mutex> lock(kindling::acl::g_state_mutex);
      if (kindling::acl::g_state == State::kNew) {
        return {ACL_ERROR_UNINITIALIZE, "aclFinalize: expected a call of aclInit before, got none"};
      }
      if (kindling::acl::g_state == State::kFinalised) {
        return {ACL_ERROR_REPEAT_FINALIZE, "aclFinalize: expected one call, got a second one"};
      }
      kindling::acl::g_state = State::kFinalised;
    }
    kindling::acl::Contexts().TakeAll();
    kindling::acl::t_has_device = false;
    // Failures of tasks belong to who synchronises; nobody is left to.
    static_cast<void>(kindling::acl::SynchronizeAll(kindling::acl::Streams::kDestroy));
    return {};
  });
}

aclError aclrtSetDevice(int32_t deviceId) {
  return Guarded(ACL_ERROR_FAILURE, [&] {
    Failure failure = kindling::acl::CheckDevice(deviceId);
    if (failure.code == 0) kindling::acl::t_has_device = true;
    return failure;
  });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return Guarded(ACL_ERROR_FAILURE, [&] {
    Failure failure = kindling::acl::CheckDevice(deviceId);
    if (failure.code != 0) return failure;
    kindling::acl::t_has_device = false;
    return kindling::acl::SynchronizeAll(kindling::acl::Streams::kKeep);
  });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (deviceId == nullptr) {
      return {ACL_ERROR_INVALID_PARAM, "deviceId: expected an address, got null"};
    }
    if (!kindling::acl::t_has_device) {
      return {ACL_ERROR_INVALID_DEVICE,
              "device: expected a call of aclrtSetDevice on this thread before, got none"};
    }
    *deviceId = 0;
    return {};
  });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (count == nullptr) return {ACL_ERROR_INVALID_PARAM, "count: expected an address, got null"};
    *count = 1;
    return {};
  });
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (context == nullptr) {
      return {ACL_ERROR_INVALID_PARAM, "context: expected an address, got null"};
    }
    *context = nullptr;
    Failure failure = kindling::acl::CheckDevice(deviceId);
    if (failure.code != 0) return failure;
    *context = kindling::acl::Contexts().Add(std::make_shared<kindling::acl::Context>());
    kindling::acl::t_has_device = true;
    return {};
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (kindling::acl::Contexts().Find(context) == nullptr) return kindling::acl::UnknownContext();
    kindling::acl::t_has_device = true;
    return {};
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (kindling::acl::Contexts().Take(context) == nullptr) return kindling::acl::UnknownContext();
    return {};
  });
}

const char* aclrtGetSocName(void) {
  try {
    thread_local std::string name;
    const auto device = kindling::acl::ConfiguredDevice();
    if (!device.ok()) {
      static_cast<void>(
          kindling::acl::Report({ACL_ERROR_INVALID_PARAM, device.status().message()}));
      return nullptr;
    }
    name = device.value().soc_version;
    return name.c_str();
  } catch (...) {
    return nullptr;
  }
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (option != ACL_OPT_DETERMINISTIC) {
      return {ACL_ERROR_INVALID_PARAM,
              kindling::Concat("option: expected ACL_OPT_DETERMINISTIC = 0, got ",
                               static_cast<int>(option))};
    }
    if (value != 0 && value != 1) {
      return {ACL_ERROR_INVALID_PARAM, kindling::Concat("value: expected 0 or 1, got ", value)};
    }
    return {};  // results are the same bits anyway
  });
}

const char* aclGetRecentErrMsg(void) { return kindling::acl::TakeRecentMessage(); }

}  // extern "C"
