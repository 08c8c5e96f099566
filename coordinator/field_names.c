#include "coordinator/field_names.h"

#include <stdio.h>
#include <string.h>

const field_name field_names_messages[] = {
    {"response_format.json_schema", "output_config.format", false},
    {"response_format", "output_config.format", false},
    {"max_completion_tokens", "max_tokens", true},
    {"chat_template_kwargs", "thinking", true},
    {"parallel_tool_calls", "tool_choice.disable_parallel_tool_use", true},
    {"stop", "stop_sequences", false},
    {"messages", "messages", true},
    {NULL, NULL, false},
};

const field_name field_names_responses[] = {
    {"response_format.json_schema", "text.format", false},
    {"response_format", "text.format", false},
    {"max_completion_tokens", "max_output_tokens", true},
    {"max_tokens", "max_output_tokens", true},
    {"reasoning_effort", "reasoning.effort", true},
    {"messages", "input", true},
    {NULL, NULL, false},
};

static size_t fits(const char *path, const char *name) {
    size_t n = strlen(name);
    if (strncmp(path, name, n) != 0) return 0;
    return path[n] == '\0' || path[n] == '.' || path[n] == '[' ? n : 0;
}

/* tools[3].function.name is tools[3].name where functions are not wrapped. */
static void unwrap_tool(char *path) {
    char *wrap = strstr(path, "].function");
    if (strncmp(path, "tools[", 6) != 0 || wrap == NULL) return;
    char *rest = wrap + strlen("].function");
    memmove(wrap + 1, rest, strlen(rest) + 1);
}

void field_names_apply(const field_name *names, char param[CHAT_PARAM_SIZE], char *message,
                       size_t cap) {
    char before[CHAT_PARAM_SIZE], rest[CHAT_PARAM_SIZE];
    memcpy(before, param, sizeof before);
    size_t n = 0;
    while (names->chat != NULL && (n = fits(before, names->chat)) == 0)
        names++;
    if (n > 0) {
        (void)snprintf(rest, sizeof rest, "%s", names->alone ? "" : before + n);
        (void)snprintf(param, CHAT_PARAM_SIZE, "%.40s%.80s", names->own, rest);
    } else {
        unwrap_tool(param);
    }
    size_t length = strlen(before);
    if (length == 0 || strncmp(message, before, length) != 0) return;
    char text[512];
    (void)snprintf(text, sizeof text, "%s%.360s", param, message + length);
    (void)snprintf(message, cap, "%s", text);
}
