// A small line chart as SVG, both axes logarithmic.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tidegate::cli {

struct Curve {
    std::string name;
    std::vector<std::pair<double, double>> points;  ///< those not above 0 are left out
};

/// A whole SVG document.
std::string log_chart(const std::string& title, const std::string& x_name, const std::string& y_name,
                      const std::vector<Curve>& curves);

}  // namespace tidegate::cli
