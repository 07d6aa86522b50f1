// How calls report failure: a Status, or a Result that holds a value or a Status. Nothing throws,
// prints or ends the process because of bad input.
#ifndef KINDLING_STATUS_H_
#define KINDLING_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace kindling {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // a value, shape or record is not what the operator's contract allows
  kInvalidDtype = 2,     // an element type is not what the contract allows
  kOutOfMemory = 3,      // the host could not give the memory that the call needs
};

// Outcome of a call. The message of a failure reads `<argument>: expected <what>, got <what>`; its
// exact wording may change, the argument's name and the code may not.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  // Requires: ok().
  const T& value() const& { return *std::get_if<0>(&state_); }
  T& value() & { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace kindling

#endif  // KINDLING_STATUS_H_
