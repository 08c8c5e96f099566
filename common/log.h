/* log.h - one line an event on stderr: time, level, stable event name, key=value pairs.
 *
 *     log_info("worker-registered", "node=%s model=%s free_pages=%u", ...);
 *
 * Errors carry error.text; every line of a request carries request=ID.  Prompts,
 * completions and keys are never logged, and nothing logs in the token loop.
 * Any thread; a line is one write, so lines never mix.
 */
#ifndef SILICEO_COMMON_LOG_H
#define SILICEO_COMMON_LOG_H

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;

/* Lines below level are dropped.  Set once at start. */
void log_set_level(log_level level);

/* "debug", "info", "warn", "error" to a level; returns 0, or -1 for another word. */
int log_parse_level(const char *word, log_level *out);

void log_write(log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(event, ...) log_write(LOG_DEBUG, (event), __VA_ARGS__)
#define log_info(event, ...)  log_write(LOG_INFO, (event), __VA_ARGS__)
#define log_warn(event, ...)  log_write(LOG_WARN, (event), __VA_ARGS__)
#define log_error(event, ...) log_write(LOG_ERROR, (event), __VA_ARGS__)

#endif
