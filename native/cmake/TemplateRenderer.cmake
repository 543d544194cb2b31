# Templates come from strangers, and llama.cpp's Jinja engine has no limits and writes other text than Jinja2: no
# template reaches it. Where llama.cpp's chat code renders one, or asks what one can do, the renderer of the call
# answers (llama_py_chat_renderer), and the engine itself is not compiled.
function(llama_py_ask_renderer)
    set(folder "${LLAMA_PY_SOURCE_DIR}/common")
    llama_py_source_text(text "${folder}" chat.cpp)
    llama_py_exchange(text TemplateRenderer.cmake
        "#include \"jinja/value.h\"
#include \"jinja/runtime.h\"
#include \"jinja/caps.h\"
"
        "#include \"llama_py_render.h\"
")
    llama_py_exchange(text TemplateRenderer.cmake
        "    jinja::lexer lexer;
    auto lexer_res = lexer.tokenize(src);
    this->prog = jinja::parse_from_tokens(lexer_res);

    this->src = lexer_res.source;
"
        "    this->src = src;
")
    llama_py_exchange(text TemplateRenderer.cmake
        "    this->caps = jinja::caps_get(prog);" "    this->caps = llama_py_template_caps(src);")
    llama_py_exchange(text TemplateRenderer.cmake "    jinja::context ctx(tmpl.source());\n" "")
    llama_py_exchange(text TemplateRenderer.cmake
        "        jinja::caps_apply_preserve_reasoning(ctx, enabled);"
        "        llama_py_default(inp, \"preserve_thinking\", enabled);
        llama_py_default(inp, \"clear_thinking\", !enabled);
        llama_py_default(inp, \"truncate_history_thinking\", !enabled);
        llama_py_default(inp, \"drop_thinking\", !enabled);")
    llama_py_exchange(text TemplateRenderer.cmake
        "        jinja::caps_apply_reasoning_effort(ctx, reasoning_effort);"
        "        llama_py_default(inp, \"reasoning_strength\", reasoning_effort);")
    llama_py_exchange(text TemplateRenderer.cmake
        "    jinja::global_from_json(ctx, inp, inputs.mark_input);

    // render
    jinja::runtime runtime(ctx);
    const jinja::value results = runtime.execute(tmpl.prog);
    auto parts = jinja::runtime::gather_string_parts(results);

    std::string result = parts->as_string().str();
"
        "    std::string result = llama_py_render_template(tmpl.source(), inp);
")
    llama_py_compile_copy(llama_py_chat "${folder}" chat.cpp "${text}")
endfunction()

llama_py_ask_renderer()
