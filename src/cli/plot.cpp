#include "cli/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tidegate::cli {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 80, kRight = 180, kTop = 40, kBottom = 50;
constexpr const char* kColours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad"};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
    return out;
}

/// From the decade at or below the least value to the one at or above the greatest.
struct Axis {
    double low = HUGE_VAL, high = -HUGE_VAL, from, to;
    void take(double x) {
        low = std::min(low, std::floor(std::log10(x)));
        high = std::max(high, std::ceil(std::log10(x)));
    }
    double at(double x) const { return from + (std::log10(x) - low) / std::max(high - low, 1.0) * (to - from); }
};

}  // namespace

std::string log_chart(const std::string& title, const std::string& x_name, const std::string& y_name,
                      const std::vector<Curve>& curves) {
    Axis x{.from = kLeft, .to = kWidth - kRight}, y{.from = kHeight - kBottom, .to = kTop};
    for (const Curve& curve : curves)
        for (const auto& [px, py] : curve.points)
            if (px > 0 && py > 0 && std::isfinite(py)) x.take(px), y.take(py);
    if (x.low > x.high) x.low = y.low = 0, x.high = y.high = 1;  // nothing to draw
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n",
        kWidth, kHeight, kLeft, escaped(title));
    const auto line = [&svg](double x1, double y1, double x2, double y2) {
        svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", x1, y1,
                           x2, y2);
    };
    const auto text = [&svg](double tx, double ty, const char* anchor, const std::string& words) {
        svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", tx, ty, anchor,
                           escaped(words));
    };
    for (int d = static_cast<int>(x.low); d <= static_cast<int>(x.high); ++d) {
        line(x.at(std::pow(10, d)), y.from, x.at(std::pow(10, d)), y.to);
        text(x.at(std::pow(10, d)), y.from + 18, "middle", fmt::format("{:g}", std::pow(10, d)));
    }
    for (int d = static_cast<int>(y.low); d <= static_cast<int>(y.high); ++d) {
        line(x.from, y.at(std::pow(10, d)), x.to, y.at(std::pow(10, d)));
        text(x.from - 8, y.at(std::pow(10, d)) + 4, "end", fmt::format("1e{}", d));
    }
    text((x.from + x.to) / 2, kHeight - 12, "middle", x_name);
    svg += fmt::format("<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                       (y.from + y.to) / 2, escaped(y_name));
    double legend = kTop + 10;
    for (std::size_t i = 0; i < curves.size(); ++i) {
        const char* colour = kColours[i % std::size(kColours)];
        std::string points;
        for (const auto& [px, py] : curves[i].points)
            if (px > 0 && py > 0 && std::isfinite(py)) points += fmt::format("{:.1f},{:.1f} ", x.at(px), y.at(py));
        svg +=
            fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n", colour, points);
        svg += fmt::format(
            "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"{3}\" "
            "stroke-width=\"3\"/>\n",
            x.to + 12, legend, x.to + 32, colour);
        text(x.to + 38, legend + 4, "start", curves[i].name + (points.empty() ? " (exactly 0)" : ""));
        legend += 20;
    }
    return svg + "</svg>\n";
}

}  // namespace tidegate::cli
