// What tests of the front door share: a good call that a test then spoils, and what an error must say.
#pragma once

#include "testing.h"
#include "tidegate/error.h"

namespace tidegate::test {

/// A good call; its outputs are there to be looked at.
struct Good {
    Problem problem;
    Owned o, state;
    std::vector<std::int64_t> cu64;
    std::vector<std::int32_t> cu32;
    Forward p;

    explicit Good(const Spec& spec)
        : problem(spec),
          o(Dtype::fp32, {problem.spec.B, problem.spec.T, spec.HV, spec.V}),
          state(Dtype::fp32, problem.state_shape()),
          p(problem.view()) {
        p.o = o.view();
        p.final_state = state.view();
        if (!p.cu_seqlens.present()) return;
        std::vector<std::int64_t> cu;
        for (const double x : values(p.cu_seqlens)) cu.push_back(static_cast<std::int64_t>(x));
        cu32.assign(cu.begin(), cu.end());
        lengths(cu);
    }
    void lengths(std::vector<std::int64_t> cu) {
        cu64 = std::move(cu);
        p.cu_seqlens = dense(cu64.data(), Dtype::int64, {static_cast<std::int64_t>(cu64.size())});
    }
};

/// The message starts with the argument and says what was given, what was expected, and all of `words`.
inline void expect_says(const Error& e, const std::string& argument, const std::vector<std::string>& words) {
    const std::string message = e.what();
    EXPECT_EQ(e.argument(), argument) << message;
    EXPECT_EQ(message.rfind(argument, 0), 0U) << message;
    for (const std::string& word : words)
        EXPECT_NE(message.find(word), std::string::npos) << message << "\nlacks: " << word;
}

/// plan() and forward() refuse the call, and nothing is written.
inline void expect_rejected(const Good& c, const std::string& argument, const std::vector<std::string>& words) {
    const auto o = c.o.bytes(), state = c.state.bytes();
    for (const bool planning : {false, true}) {
        try {
            planning ? static_cast<void>(plan(c.p)) : forward(c.p);
            ADD_FAILURE() << "accepted";
        } catch (const Error& e) {
            expect_says(e, argument, words);
        }
    }
    EXPECT_EQ(c.o.bytes(), o) << "o was written";
    EXPECT_EQ(c.state.bytes(), state) << "final_state was written";
}

}  // namespace tidegate::test
