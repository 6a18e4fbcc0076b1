// Input for the compiler: standard templates whose compilation takes much memory.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

int main() {
  std::map<std::string, std::vector<std::string>> words;
  std::unordered_map<int, std::function<int(int)>> steps;
  std::regex word("[a-z]+(-[a-z]+)*");
  for (std::string line; std::getline(std::cin, line);)
    for (std::sregex_iterator at(line.begin(), line.end(), word), end; at != end; ++at)
      words[at->str()].push_back(line);
  steps[1] = [&](int number) { return number + static_cast<int>(words.size()); };
  for (auto &[name, lines] : words) std::sort(lines.begin(), lines.end());
  std::cout << steps[1](2) << '\n';
}
