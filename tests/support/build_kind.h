// What a test must know of the build that it runs in.
#ifndef KINDLING_TESTS_SUPPORT_BUILD_KIND_H_
#define KINDLING_TESTS_SUPPORT_BUILD_KIND_H_

#if defined(__SANITIZE_ADDRESS__)
#define KINDLING_TEST_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KINDLING_TEST_UNDER_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define KINDLING_TEST_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KINDLING_TEST_UNDER_TSAN 1
#endif
#endif

namespace kindling::test {

#ifdef KINDLING_TEST_UNDER_ASAN
inline constexpr bool kUnderAsan = true;
#else
inline constexpr bool kUnderAsan = false;
#endif

#ifdef KINDLING_TEST_UNDER_TSAN
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif

// Sanitizers slow the code down ten times and more; sweeps get smaller, single cases do not.
inline constexpr bool kSanitized = kUnderAsan || kUnderTsan;

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_BUILD_KIND_H_
