/* chat_build.h - what the translations of other APIs into a chat request share.
 *
 * A chat_build walks over a foreign request and makes a chat request of it.  Errors name the
 * foreign field.  After a failed allocation `failed` is set and later calls do nothing of use;
 * the end of the translation turns it into STATUS_NO_MEMORY.  No state; any thread.
 */
#ifndef SILICEO_COORDINATOR_CHAT_BUILD_H
#define SILICEO_COORDINATOR_CHAT_BUILD_H

#include "common/body_reader.h"
#include "coordinator/chat_params.h"
#include "coordinator/field_names.h"

typedef struct chat_build {
    body_reader in;  /* of the foreign request, whose body is the caller's to delete */
    cJSON *root;     /* the chat request */
    cJSON *messages; /* in root */
    json_text reasoning;
    const field_name *names; /* the foreign ones of chat's fields */
    bool failed;             /* no memory */
} chat_build;

/* Parses the body.  chat_build_end() is due also after an error. */
status chat_build_begin(chat_build *b, const field_name *names, const char *body, size_t length,
                        char param[CHAT_PARAM_SIZE], error *err);
/* The checked parameters of what was built, if rc is STATUS_OK; frees everything. */
status chat_build_end(chat_build *b, chat_params *out, status rc);

/* object[name] = item, which is taken also on failure. */
void chat_build_put(chat_build *b, cJSON *object, const char *name, cJSON *item);
void chat_build_put_text(chat_build *b, cJSON *object, const char *name, const char *text);
/* root[name] = what the foreign request has as `as`, where that is present. */
void chat_build_copy(chat_build *b, const char *as, const char *name);
/* A new message at the end; NULL without memory. */
cJSON *chat_build_message(chat_build *b, const char *role);
/* One more text of message.content. */
void chat_build_add_text(chat_build *b, cJSON *message, const char *text);
/* Deliberation is gathered, and then put into the message that it belongs to. */
void chat_build_add_reasoning(chat_build *b, const char *text);
void chat_build_put_reasoning(chat_build *b, cJSON *message);
/* A tool {type: function, function: {...}} of a foreign one's name, description, schema. */
void chat_build_tool(chat_build *b, cJSON *tools, const cJSON *tool, const char *schema);
/* A call in message.tool_calls; arguments: an object, or text. */
void chat_build_call(chat_build *b, cJSON *message, const char *id, const char *name,
                     const cJSON *arguments);

#endif
