#include "worker/text/chat_template_text.h"

const char chat_text_tools_head[] =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";

const char chat_text_tools_tail[] =
    "\n"
    "\n"
    "If you choose to call a function ONLY reply in the following format with NO "
    "suffix:\n"
    "\n"
    "<tool_call>\n"
    "<function=example_function_name>\n"
    "<parameter=example_parameter_1>\n"
    "value_1\n"
    "</parameter>\n"
    "<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\n"
    "that can span\n"
    "multiple lines\n"
    "</parameter>\n"
    "</function>\n"
    "</tool_call>\n"
    "\n"
    "<IMPORTANT>\n"
    "Reminder:\n"
    "- Function calls MUST follow the specified format: an inner "
    "<function=...></function> block must be nested within <tool_call></tool_call> "
    "XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language "
    "BEFORE the function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with "
    "your current knowledge and do not tell the user about function calls\n"
    "</IMPORTANT>";

const char chat_text_think_sha256[] =
    "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715";
const char chat_text_nothink_sha256[] =
    "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80";
