// Compares outputs. A failure prints the worst element, both values, the bound and a command that
// runs the case again.
#ifndef KINDLING_TESTS_SUPPORT_COMPARE_H_
#define KINDLING_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <string_view>

#include "support/error_bounds.h"
#include "support/problem.h"

namespace kindling::test {

// Whether every |got - want| is within its bound; where the bound is 0, got == want. An infinity
// matches the same infinity, a NaN a NaN.
testing::AssertionResult Near(std::string_view name, const OwnedTensor& got,
                              const OwnedTensor& want, const Bounds& bounds, const Case& spec);

// Whether two tensors hold the same bits, element by element, whatever their spread. An absent one
// equals anything: an optional output that was not asked for.
testing::AssertionResult SameBits(std::string_view name, const OwnedTensor& got,
                                  const OwnedTensor& want, const Case& spec);
testing::AssertionResult SameBits(const LseOutputs& got, const LseOutputs& want, const Case& spec);
testing::AssertionResult SameBits(const GradOutputs& got, const GradOutputs& want,
                                  const Case& spec);

// Whether an operator wrote every element.
testing::AssertionResult Written(std::string_view name, const OwnedTensor& got, const Case& spec);

// |got - want| / |want| in the 2-norm, over all elements.
double RelativeError(const OwnedTensor& got, const OwnedTensor& want);
// max |got - want|; equal infinities do not differ.
double MaxError(const OwnedTensor& got, const OwnedTensor& want);

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_COMPARE_H_
