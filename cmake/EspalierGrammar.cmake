# xgrammar as one static target, from the sources that tools/setup.sh fetches into .cache (a machine without them gets
# everything but structured output). Theirs are the warnings, ours the sanitizers; -O2 whatever the build type, because
# without optimisation a grammar of a real vocabulary takes minutes to compile.
set(ESPALIER_GRAMMAR AUTO CACHE STRING "Structured output (needs xgrammar's sources): ON, OFF, or AUTO: where they are")
set(ESPALIER_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/.cache/xgrammar-0.2.8 CACHE PATH "xgrammar's sources")

set(espalier_with_grammar OFF)
if(ESPALIER_GRAMMAR STREQUAL AUTO)
    if(EXISTS ${ESPALIER_XGRAMMAR_DIR}/cpp/grammar_matcher.cc)
        set(espalier_with_grammar ON)
    else()
        message(WARNING "structured output is left out: xgrammar's sources are not in ${ESPALIER_XGRAMMAR_DIR} (tools/setup.sh run)")
    endif()
elseif(ESPALIER_GRAMMAR)
    if(NOT EXISTS ${ESPALIER_XGRAMMAR_DIR}/cpp/grammar_matcher.cc)
        message(FATAL_ERROR "ESPALIER_GRAMMAR is on, but xgrammar's sources are not in ${ESPALIER_XGRAMMAR_DIR} (tools/setup.sh run)")
    endif()
    set(espalier_with_grammar ON)
endif()
if(NOT espalier_with_grammar)
    return()
endif()

file(GLOB_RECURSE xgrammar_sources ${ESPALIER_XGRAMMAR_DIR}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/.*\\.cc$")

# Compiles `file` with `from` replaced by `to`, in a copy in the build folder.
function(espalier_patch_xgrammar file from to)
    set(original ${ESPALIER_XGRAMMAR_DIR}/cpp/${file})
    set(patched ${PROJECT_BINARY_DIR}/xgrammar/${file})
    set(current ${original})
    if(${patched} IN_LIST xgrammar_sources)
        set(current ${patched}.next)
    endif()
    file(READ ${current} text)
    string(FIND "${text}" "${from}" found)
    if(found EQUAL -1)
        message(FATAL_ERROR "${original} is not the file of xgrammar 0.2.8: it has no '${from}'")
    endif()
    string(REPLACE "${from}" "${to}" text "${text}")
    file(WRITE ${patched}.next "${text}")
    list(REMOVE_ITEM xgrammar_sources ${original})
    list(APPEND xgrammar_sources ${patched})
    list(REMOVE_DUPLICATES xgrammar_sources)
    set(xgrammar_sources ${xgrammar_sources} PARENT_SCOPE)
endfunction()

# "ab" has to be a prefix of a token, not somewhere in it, for the token to be skipped when "ab" is rejected: masks lacked
# legal tokens such as "acab".
espalier_patch_xgrammar(tokenizer_info.cc
    "(token.find(prefix_stack.top().first) == std::string::npos)"
    "(token.compare(0, prefix_stack.top().first.size(), prefix_stack.top().first) != 0)")
# Control characters are not valid in a JSON string; strings with minLength or maxLength had them.
espalier_patch_xgrammar(json_schema_converter.cc
    "{{'\"', '\"'}, {'\\\\', '\\\\'}, {'\\r', '\\r'}, {'\\n', '\\n'}}, true"
    "{{'\"', '\"'}, {'\\\\', '\\\\'}, {0, 0x1f}}, true")
# A pattern is an expression of EBNF that src/grammar has written. Read as a regular expression, x([.]a)? took "xa" too.
espalier_patch_xgrammar(json_schema_converter.cc
    "  bool can_use_fsm = !force_cfg_expansion;"
    "  if (json_string) return AddSubGrammar(Grammar::FromEBNF(\"root ::= \" + regex));
  bool can_use_fsm = !force_cfg_expansion;")
# Escapes of lone surrogates are no text (many parsers refuse them); what lies beyond U+FFFF is written as it is.
espalier_patch_xgrammar(json_schema_converter.cc
    "  int32_t unicode_escape = Sequence(
      {ByteString(\"u\"),
       hexadecimal_character,
       hexadecimal_character,
       hexadecimal_character,
       hexadecimal_character}
  );"
    "  int32_t below_surrogates = Sequence(
      {builder_.AddCharacterClass({{'D', 'D'}, {'d', 'd'}}),
       builder_.AddCharacterClass({{'0', '7'}}),
       hexadecimal_character,
       hexadecimal_character}
  );
  int32_t not_d = Sequence(
      {builder_.AddCharacterClass({{'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}, {'0', '9'}}),
       hexadecimal_character,
       hexadecimal_character,
       hexadecimal_character}
  );
  int32_t unicode_escape = Sequence({ByteString(\"u\"), Choice({below_surrogates, not_d})});")
# A number is a finite double: at most 200 digits before the point and an exponent of one or two. Parsers read 1e0022072020 as
# infinity or refuse it.
espalier_patch_xgrammar(json_schema_converter.cc
    "           {builder_.AddCharacterClass({{'1', '9'}}), builder_.AddCharacterClassStar({{'0', '9'}})}
       )}
  );
  int32_t one_or_more_digits ="
    "           {builder_.AddCharacterClass({{'1', '9'}}),
            Repeat(rule_name + \"_integer\", builder_.AddCharacterClass({{'0', '9'}}), 0, 199)}
       )}
  );
  int32_t one_or_more_digits =")
espalier_patch_xgrammar(json_schema_converter.cc
    "            one_or_more_digits}
       )}
  );
  // Note: The format must be"
    "            Repeat(rule_name + \"_exponent\", builder_.AddCharacterClass({{'0', '9'}}), 1, 2)}
       )}
  );
  // Note: The format must be")
# UTF-8 has no surrogates, no overlong forms and nothing beyond U+10FFFF; classes of characters had.
espalier_patch_xgrammar(fsm_builder.cc
    "void AddPackedUTF8RangeEdges(FSM& fsm, int from, int to, uint32_t min, uint32_t max) {"
    "void AddPackedUTF8RangeEdges(FSM& fsm, int from, int to, uint32_t min, uint32_t max) {
  constexpr uint32_t kMin2BytesUnicode = 0xC280, kMin3BytesUnicode = 0xE0A080;
  constexpr uint32_t kMin4BytesUnicode = 0xF0908080, kMax4BytesUnicode = 0xF48FBFBF;
  if (min < 0xEDA080 && max > 0xEDBFBF) {
    AddPackedUTF8RangeEdges(fsm, from, to, min, 0xED9FBF);
    AddPackedUTF8RangeEdges(fsm, from, to, 0xEE8080, max);
    return;
  }
  if (min >= 0xEDA080 && min <= 0xEDBFBF) min = 0xEE8080;
  if (max >= 0xEDA080 && max <= 0xEDBFBF) max = 0xED9FBF;
  if (min > max) return;")
# Nothing follows the root rule, unless a rule refers to it: of a list of lists, masks lacked "]]".
espalier_patch_xgrammar(grammar_compiler.cc
    "  auto root_rule_id = compiled_grammar_impl->grammar->GetRootRuleId();"
    "  auto root_rule_id = compiled_grammar_impl->grammar->GetRootRuleId();
  for (int32_t i = 0; i < compiled_grammar_impl->grammar->NumGrammarExprs(); ++i) {
    auto expr = compiled_grammar_impl->grammar->GetGrammarExpr(i);
    using Type = Grammar::Impl::GrammarExprType;
    if ((expr.type == Type::kRuleRef || expr.type == Type::kRepeat) && expr[0] == root_rule_id) {
      root_rule_id = -1;
      break;
    }
  }")
# What follows a rule is looked at when its masks are made. There a range of a class was cut to 8 bits, so that U+E000 and
# beyond took every ASCII character: after (.)*, masks had tokens such as "{\"" of which the second byte is not legal.
espalier_patch_xgrammar(earley_parser.cc
    "    if (static_cast<uint8_t>(sub_sequence[i]) <= ch &&
        ch <= static_cast<uint8_t>(sub_sequence[i + 1])) {"
    "    if (sub_sequence[i] <= ch && ch <= sub_sequence[i + 1]) {")
# Repetitions up to this count are written out, each with states of its own whose masks are made one by one: with 128, a
# string of up to 200 characters took more than 20 s to compile for 129,280 tokens. Those of a class of characters are
# counted instead (src/grammar/xgrammar/counted_compile.inc).
espalier_patch_xgrammar(grammar_functor.cc
    "static const int64_t kUnzipThreshold = 128;"
    "static const int64_t kUnzipThreshold = 16;
  const auto repeated = builder_->GetGrammarExpr(grammar_expr_id);
  const bool characters = repeated.type == GrammarBuilder::GrammarExprType::kCharacterClass;
  if (characters && upper == -1 && lower > 4) {
    std::vector<GrammarBuilder::CharacterClassElement> ranges;
    for (int i = 1; i < static_cast<int>(repeated.size()); i += 2) ranges.push_back({repeated[i], repeated[i + 1]});
    const bool negated = repeated[0];
    const int32_t least = ExpandRepetitionRange(cur_rule_name, grammar_expr_id, lower, lower);
    const int32_t more = builder_->AddCharacterClassStar(ranges, negated);
    return builder_->AddRuleRef(builder_->AddRuleWithHint(
        cur_rule_name, builder_->AddChoices({builder_->AddSequence({least, more})})));
  }
  if (characters && upper > 4) {
    const auto character = builder_->AddRuleWithHint(
        \"#\" + cur_rule_name, builder_->AddChoices({builder_->AddSequence({grammar_expr_id})}));
    std::vector<int32_t> ways;
    if (lower == 0) ways.push_back(builder_->AddEmptyStr());
    ways.push_back(builder_->AddSequence(
        {builder_->AddRepeat(character, std::max<int64_t>(lower, 1), upper)}));
    return builder_->AddRuleRef(
        builder_->AddRuleWithHint(cur_rule_name + \"_counted\", builder_->AddChoices(ways)));
  }")
espalier_patch_xgrammar(grammar_compiler.cc
    "#include <bitset>"
    "#include <array>
#include <bitset>
#include <deque>")
espalier_patch_xgrammar(grammar_matcher.cc
    "#include <chrono>"
    "#include <bitset>
#include <chrono>
#include <deque>")
espalier_patch_xgrammar(grammar_compiler.cc
    "/******************* GrammarCompilerNoCache *******************/"
    "#include \"grammar/xgrammar/counted_compile.inc\"")
espalier_patch_xgrammar(grammar_compiler.cc
    "  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {"
    "  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
    if (IsCountedRule(compiled_grammar_impl->grammar, state.rule_id)) {
      compiled_grammar_impl->adaptive_token_mask_cache[state] =
          CountedTokenMask(compiled_grammar_impl->grammar, state, tokenizer_info_);
      return;
    }")
espalier_patch_xgrammar(grammar_matcher.cc
    "  using StoreType = AdaptiveTokenMask::StoreType;"
    "  using StoreType = AdaptiveTokenMask::StoreType;
#include \"grammar/xgrammar/counted_match.inc\"")
espalier_patch_xgrammar(grammar_matcher.cc
    "std::vector<std::pair<ParserState, decltype(adaptive_token_mask_cache.cbegin())>>
      latest_states_with_masks;"
    "std::deque<AdaptiveTokenMask> counted_masks;
  std::vector<std::pair<ParserState, const AdaptiveTokenMask*>> latest_states_with_masks;")
espalier_patch_xgrammar(grammar_matcher.cc
    "    latest_states_with_masks.push_back(std::make_pair(state, adaptive_token_mask_it));"
    "    if (IsCounted(state)) {
      counted_masks.push_back(CountedMask(state, adaptive_token_mask));
      latest_states_with_masks.emplace_back(state, &counted_masks.back());
      continue;
    }
    latest_states_with_masks.emplace_back(state, &adaptive_token_mask);")
espalier_patch_xgrammar(grammar_matcher.cc
    "  for (const auto& [state, adaptive_token_mask_it] : latest_states_with_masks) {
    const auto& adaptive_token_mask = adaptive_token_mask_it->second;"
    "  for (const auto& [state, state_mask] : latest_states_with_masks) {
    const auto& adaptive_token_mask = *state_mask;")
# Where a text stands, as numbers: equal places have equal masks (src/grammar/mask_cache.hpp).
espalier_patch_xgrammar(grammar_matcher.cc
    "#include \"grammar/xgrammar/counted_match.inc\""
    "#include \"grammar/xgrammar/counted_match.inc\"
 public:
#include \"grammar/xgrammar/state_key.inc\"
 private:")
espalier_patch_xgrammar(grammar_matcher.cc
    "class BatchGrammarMatcher::Impl {"
    "bool StateKey(const GrammarMatcher& matcher, int32_t longest, std::vector<int32_t>* key) {
  return matcher->StateKey(longest, key);
}

class BatchGrammarMatcher::Impl {")
# The loops over a grammar's states and the vocabulary count what they do (src/grammar/xgrammar_log.hpp).
espalier_patch_xgrammar(grammar_compiler.cc
    "/************** AdaptiveTokenMaskCache Generator **************/"
    "void SpendWork(std::int64_t work);")
espalier_patch_xgrammar(grammar_compiler.cc
    "      cur_stack_element.element_id = i;"
    "      SpendWork(1000); cur_stack_element.element_id = i;")
espalier_patch_xgrammar(grammar_compiler.cc
    "if (!Advance(token[j])) {"
    "SpendWork(1); if (!Advance(token[j])) {")
espalier_patch_xgrammar(grammar_compiler.cc
    "if (!Advance(token[pos])) {"
    "SpendWork(1); if (!Advance(token[pos])) {")

# Only once all patches are in, so that configuring again compiles nothing again.
foreach(source ${xgrammar_sources})
    if(EXISTS ${source}.next)
        file(COPY_FILE ${source}.next ${source} ONLY_IF_DIFFERENT)
    endif()
endforeach()

list(TRANSFORM xgrammar_sources REPLACE "^(${ESPALIER_XGRAMMAR_DIR}/cpp|${PROJECT_BINARY_DIR}/xgrammar)/" "")
espalier_batches(xgrammar_batches "" 8 ${xgrammar_sources})
add_library(espalier_xgrammar STATIC ${xgrammar_batches})
set_target_properties(espalier_xgrammar PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_features(espalier_xgrammar PRIVATE cxx_std_17)
target_include_directories(espalier_xgrammar SYSTEM PUBLIC ${ESPALIER_XGRAMMAR_DIR}/include
    ${ESPALIER_XGRAMMAR_DIR}/3rdparty/picojson ${ESPALIER_XGRAMMAR_DIR}/3rdparty/dlpack/include)
target_include_directories(espalier_xgrammar PRIVATE ${PROJECT_BINARY_DIR}/xgrammar ${ESPALIER_XGRAMMAR_DIR}/cpp
    ${PROJECT_SOURCE_DIR}/src)
target_compile_options(espalier_xgrammar PRIVATE -w -O2)
# What it would print goes to src/grammar (LogMessageImpl, LogFatalImpl).
target_compile_definitions(espalier_xgrammar PUBLIC XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
    XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_link_libraries(espalier_xgrammar PUBLIC Threads::Threads)
espalier_sanitize(espalier_xgrammar)
