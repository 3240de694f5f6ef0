// keel report DIR
#include <filesystem>
#include <memory>

#include "framework/base/log.h"
#include "framework/config/yaml.h"
#include "framework/lab/ablation_report.h"
#include "framework/lab/run_report.h"
#include "launch/common/commands.h"

namespace keel {
namespace {

std::string config_of(const std::string& directory) {
  const std::string path = directory + "/config.yaml";
  return std::filesystem::exists(path) ? config::read_text(path) : "";
}

void run(std::string directory) {
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  if (!std::filesystem::is_directory(directory))
    throw input_error("{}: no such folder; a run or an ablation is kept in runs/NAME", directory);
  lab::require_gnuplot();
  io::IoThread io;
  if (lab::is_ablation(directory)) {
    const lab::Ablation ablation = lab::read_ablation(directory);
    lab::write_tables(io, directory, ablation.plan);
    lab::write_page(lab::ablation_report(ablation, config_of(directory)), directory);
  } else {
    lab::write_page(lab::run_report(lab::read_run(io, directory), config_of(directory)), directory);
  }
  log::info("{0}/report.html; pictures and their numbers in {0}/report/", directory);
}

}  // namespace

void add_report(CLI::App& program) {
  auto directory = std::make_shared<std::string>();
  CLI::App* command =
      program.add_subcommand("report", "Pictures and numbers of a run or an ablation, in one HTML file");
  command->add_option("directory", *directory, "runs/NAME")->required();
  command->callback([directory] { run(*directory); });
}

}  // namespace keel
