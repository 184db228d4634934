// lib: subjects. A shared library with the C ABI of tidegate/subject.h, loaded in a child process of the tool.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "subjects/subject.h"

namespace tidegate::subjects {

/// An exec subject in the persistent form, whose command is the tool itself. Throws Error("subject") if the library
/// cannot be loaded or lacks tidegate_subject.
std::unique_ptr<Subject> make_lib(const std::string& path, const Limits& limits);

/// The program that make_lib() runs as `PROGRAM lib-child ...`. Empty: the running one, which must then be the tool;
/// tests and whoever else embeds make_lib() name a tidegate here.
std::string& lib_tool();

/// The main of that child: PATH serves requests from stdin, PATH REQUEST ANSWER serves one. Returns the exit code.
int lib_child(const std::vector<std::string>& words);

inline constexpr const char* kLibProbe = "TIDEGATE_LIB_PROBE";        ///< set: load the library, say so, and end
inline constexpr const char* kLibReady = "@tidegate library loaded";  ///< what the probe then says

}  // namespace tidegate::subjects
