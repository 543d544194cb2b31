// In the place of the header that llama-server's page is compiled into: a benchmark needs no page.
#pragma once

#include <string>
#include <vector>

struct llama_ui_asset {
    std::string name;
};

inline const std::vector<llama_ui_asset> & llama_ui_get_assets() {
    static const std::vector<llama_ui_asset> none;
    return none;
}
