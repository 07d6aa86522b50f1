// How calls report failure: a Status, or a Result that holds a value or a Status. Nothing throws,
// prints or ends the process because of bad input.
#ifndef KINDLING_STATUS_H_
#define KINDLING_STATUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace kindling {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // a value, shape or record is not what the operator's contract allows
  kInvalidDtype = 2,     // an element type is not what the contract allows
  kOutOfMemory = 3,      // the host could not give the memory that the call needs
};

// Outcome of a call. The message of a failure reads `<argument>: expected <what>, got <what>`, with
// an index behind the argument where one element is at fault; its exact wording may change, the
// argument's name and the code may not.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  Status(StatusCode code, std::string argument, std::string message)
      : code_(code), argument_(std::move(argument)), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // The argument at fault, without an index: "q", "seqused_k".
  const std::string& argument() const { return argument_; }
  const std::string& message() const { return message_; }

  // Of kInvalidDtype: whether the message lacks a word for what it got, since the library knows no
  // such dtype. Whoever knows one makes the message whole by MessageWithDtype.
  bool lacks_dtype_name() const { return lacks_dtype_name_; }
  std::string MessageWithDtype(std::string_view name) const {
    return lacks_dtype_name_ ? message_.substr(0, dtype_begin_).append(name) : message_;
  }
  // Requires: the message ends with the word for a dtype, which begins at `begin`.
  void MarkUnnamedDtype(size_t begin) {
    lacks_dtype_name_ = true;
    dtype_begin_ = begin;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  bool lacks_dtype_name_ = false;
  size_t dtype_begin_ = 0;
  std::string argument_;
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
