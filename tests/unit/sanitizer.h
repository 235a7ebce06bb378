/* sanitizer.h - which sanitizer a test is built with.
 *
 * ThreadSanitizer looks for races alone, and makes arithmetic ten times slower. Where a test does
 * the same again and again with other numbers (recordings, the allocation that fails), it may do
 * less of it under TEST_TSAN, never none: the whole of it runs in the builds without a sanitizer
 * and with AddressSanitizer.
 */
#ifndef BERTH_SANITIZER_H
#define BERTH_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* gcc */
#define TEST_SANITIZED 1
#elif defined(__has_feature) /* clang */
#define TEST_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define TEST_SANITIZED 0
#endif

#if defined(__SANITIZE_THREAD__) /* gcc */
#define TEST_TSAN 1
#elif defined(__has_feature) /* clang */
#define TEST_TSAN __has_feature(thread_sanitizer)
#else
#define TEST_TSAN 0
#endif

#endif
