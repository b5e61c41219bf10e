//! Calls as the models of each dialect write them: their templates write the same.

/// A dialect, an answer with one call, and one with two.
pub(super) const CALLS: [(&str, &str, &str); 26] = [
    (
        "hermes",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>\n\
         <tool_call>\n{\"arguments\": {}, \"name\": \"clock\"}\n</tool_call>",
    ),
    (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n\
         <tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    (
        "llama3",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}}<|eot_id|>",
        "{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}}; \
         {\"name\": \"clock\", \"parameters\": {}}",
    ),
    (
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}, \"id\": \"abcdefghi\"}]",
        "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}, {\"name\": \"clock\", \"arguments\": {}}]",
    ),
    (
        "mistral-args",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\", \"days\": 2}",
        "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Oslo\", \"days\": 2}[TOOL_CALLS]clock[ARGS]{}",
    ),
    (
        "gemma",
        "```tool_code\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}}\n```",
        "```tool_code\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}}\n{\"name\": \"clock\"}\n```",
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\", \"days\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\", \"days\": 2}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\", \"days\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\", \"days\": 2}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\", \"days\": 2}<|call|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\", \"days\": 2}<|call|>\
         <|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>",
    ),
    (
        "command-r",
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}}\n]<|END_ACTION|>",
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}},\n\
         {\"tool_call_id\": \"1\", \"tool_name\": \"clock\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        "generic",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}</tool_call>\n",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Oslo\\\", \\\"days\\\": 2}\"}\n\
         {\"name\": \"clock\", \"arguments\": null}</tool_call>",
    ),
    (
        "seed-oss",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=clock>\n</function>\n</seed:tool_call>",
    ),
    (
        "minimax-m2",
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"clock\">\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "deepseek-v3.2",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"clock\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "deepseek-v4",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"clock\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    (
        "minicpm5",
        "<function name=\"weather\"><param name=\"city\">Oslo</param><param name=\"days\">2</param></function>",
        "<function name=\"weather\"><param name=\"city\">Oslo</param><param name=\"days\">2</param></function>\n<function name=\"clock\"></function>",
    ),
    (
        "glm",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>clock</tool_call>",
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 2}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "functionary-v3.1",
        "<function=weather>{\"city\": \"Oslo\", \"days\": 2}</function>",
        "<function=weather>{\"city\": \"Oslo\", \"days\": 2}</function><function=clock>{}</function>",
    ),
    (
        "minimax-m1",
        "<tool_calls>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_calls>",
        "<tool_calls>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_calls>",
    ),
    (
        "tool-calls",
        "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}]</tool_calls>",
        "<tool_calls>[\n    {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}},\n    {\"name\": \"clock\", \"arguments\": {}}\n]</tool_calls>",
    ),
    (
        "nemotron-v2",
        "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}]</TOOLCALL>",
        "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}, {\"name\": \"clock\", \"arguments\": {}}]</TOOLCALL>",
    ),
    (
        "apertus",
        "<|tools_prefix|>[{\"weather\": {\"city\": \"Oslo\", \"days\": 2}}]<|tools_suffix|>",
        "<|tools_prefix|>[{\"weather\": {\"city\": \"Oslo\", \"days\": 2}}, {\"clock\": {}}]<|tools_suffix|>",
    ),
    (
        "granite-3",
        "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}]",
        "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}, {\"name\": \"clock\", \"arguments\": {}}]",
    ),
    (
        "gigachat3.1",
        "<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}",
        "<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n{\"name\": \"clock\", \"arguments\": {}}",
    ),
    (
        "gemma4",
        "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:2}<tool_call|>",
        "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:2}<tool_call|><|tool_call>call:clock{}<tool_call|>",
    ),
];

/// The number of dialects before `seed-oss`, of which some answers are not as templates write them.
pub(super) const N_OLDER: usize = 11;
