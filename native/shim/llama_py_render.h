// What llama.cpp's chat code asks instead of its own Jinja engine. C++, inside of the library only.
#pragma once

#include "json.h"
#include "jinja/caps.h"

#include <string>

// The text of a template with these variables, as the renderer of the call writes it. Throws what it says.
std::string llama_py_render_template(const std::string & source, const common_json & values);

// What a template can do, as the renderer of the call found out.
jinja::caps llama_py_template_caps(const std::string & source);

// Sets a variable of a template, unless the caller has.
template <typename Value> void llama_py_default(common_json & variables, const char * name, const Value & value) {
    if (!variables.contains(name)) {
        variables[name] = value;
    }
}
