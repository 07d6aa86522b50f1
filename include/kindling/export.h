#ifndef KINDLING_EXPORT_H_
#define KINDLING_EXPORT_H_

// Marks what libkindling exports; everything else is compiled with hidden visibility.
#define KINDLING_API __attribute__((visibility("default")))

#endif  // KINDLING_EXPORT_H_
