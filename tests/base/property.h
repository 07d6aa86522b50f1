// Runs a RapidCheck property inside a GoogleTest test, with a seed that comes from the test's name.
#ifndef KINDLING_TESTS_BASE_PROPERTY_H_
#define KINDLING_TESTS_BASE_PROPERTY_H_

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/detail/TestListenerAdapter.h>

#include <sstream>
#include <utility>

#include "support/random.h"

namespace kindling::test {

// Fails the running test with the shrunk counterexample if `property` does not hold.
template <class Property>
void CheckProperty(Property&& property, int num_cases = 200) {
  rc::detail::TestMetadata metadata;
  metadata.id = RunningTest();
  rc::detail::TestParams params;
  params.seed = Hash(metadata.id);
  params.maxSuccess = num_cases;
  // The overloads with fewer arguments read the environment and announce a random seed.
  rc::detail::TestListenerAdapter silent;
  const rc::detail::TestResult result = rc::detail::checkProperty(
      rc::detail::toProperty(std::forward<Property>(property)), metadata, params, silent, {});
  if (result.template is<rc::detail::SuccessResult>()) return;
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  ADD_FAILURE() << text.str();
}

}  // namespace kindling::test

#endif  // KINDLING_TESTS_BASE_PROPERTY_H_
