use super::Fit;
use crate::chat_template::{ChatTemplate, Message, RenderOptions};
use serde_json::{Value, json};

/// The prompt for `messages`, a JSON list, with and without tools.
fn prompt_with(template: &str, messages: Value, tools: Option<Value>) -> String {
    let template = ChatTemplate::parse(template).unwrap();
    let mut options = RenderOptions {
        add_generation_prompt: true,
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        ..RenderOptions::default()
    };
    let fit = Fit::of(&template, options.clone());
    options.tools = tools.and_then(|tools| tools.as_array().cloned());
    let mut messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    fit.fit(&mut messages, &mut options).unwrap();
    template.render(&messages, &options).unwrap()
}

fn prompt(template: &str, messages: Value) -> String {
    prompt_with(template, messages, None)
}

/// The plain OpenAI tool loop: a call with this content, and its result.
fn called(content: &Value) -> Value {
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "tide", "arguments": "{\"at\":\"Ribe\"}"}});
    json!([{"role": "user", "content": "How high?"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "low"}])
}

const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ '' + m.content }}{% endfor %}";
/// Writes calls, if the content is a text.
const CALLS: &str = "{% for m in messages %}<{{ m.role }}>{% if 'x' in m.content %}x{% endif %}{{ m.content }}\
    {% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}{% endfor %}";

#[test]
fn a_call_without_content_is_rendered_where_null_fails() {
    let expected = "<user>How high?<assistant>[tide {\"at\":\"Ribe\"}]<tool>low";
    assert_eq!(prompt(CALLS, called(&Value::Null)), expected);
    assert_eq!(prompt(CALLS, called(&json!(""))), expected);
    let mut absent = called(&Value::Null);
    absent[1].as_object_mut().unwrap().shift_remove("content");
    assert_eq!(prompt(CALLS, absent), expected);
    // This one writes calls only where the content is null.
    let template = "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}\
        {% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}";
    for content in [Value::Null, json!("")] {
        assert_eq!(prompt(template, called(&content)), expected);
    }
}

#[test]
fn a_null_is_never_printed_as_a_word() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\
        {% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}{% endfor %}";
    assert!(prompt(template, called(&Value::Null)).contains("<assistant>[tide"));
    let plain = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": null},
        {"role": "user", "content": "b"}]);
    assert_eq!(prompt(template, plain), "<user>a<assistant><user>b");
}

#[test]
fn what_a_template_takes_goes_in_unchanged() {
    let template = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
    for content in [
        Value::Null,
        json!(""),
        json!("So."),
        json!([{"type": "text", "text": "So."}]),
    ] {
        let mut messages = called(&content);
        messages[1]["tool_calls"][0]["function"]["arguments"] = json!({"at": "Ribe"});
        let sent: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
        let direct = ChatTemplate::parse(template)
            .unwrap()
            .render(&sent, &RenderOptions::default());
        if content.is_array() {
            // This template prints a list as it is, which no model has seen.
            assert!(prompt(template, messages).contains(r#""content": "So.""#));
        } else {
            assert_eq!(Ok(prompt(template, messages)), direct);
        }
    }
}

#[test]
fn a_past_call_is_written_where_the_template_knows_none() {
    let messages = called(&json!("Let me see."));
    let expected = "<user>How high?<assistant>Let me see.\n\n<tool_call>\n\
        {\"name\": \"tide\", \"arguments\": {\"at\":\"Ribe\"}}\n</tool_call>\
        <user><tool_response>\nlow\n</tool_response>";
    assert_eq!(prompt(CHATML, messages.clone()), expected);
    let tools = json!([{"type": "function", "function": {"name": "tide"}}]);
    let with_tools = prompt_with(CHATML, messages.clone(), Some(tools));
    assert!(
        with_tools.starts_with("<system>You can call these functions:\n"),
        "{with_tools}"
    );
    assert!(with_tools.ends_with(expected), "{with_tools}");
    // The next question joins the result: some templates take no two messages of the user in a row.
    let mut more = messages;
    more.as_array_mut()
        .unwrap()
        .push(json!({"role": "user", "content": "And now?"}));
    assert!(prompt(CHATML, more).ends_with("</tool_response>\n\nAnd now?"));
}

#[test]
fn arguments_are_text_or_objects_as_the_template_needs() {
    let of = |print: &str| {
        let template = format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content or '' }}}}{{% for c in m.tool_calls %}}\
             {{{{ c.function.name }}}} {print}{{% endfor %}}{{% endfor %}}"
        );
        let text = prompt(&template, called(&Value::Null));
        let mut messages = called(&Value::Null);
        messages[1]["tool_calls"][0]["function"]["arguments"] = json!({"at": "Ribe"});
        let object = prompt(&template, messages);
        [text, object].map(|text| {
            text.split("tide ")
                .nth(1)
                .unwrap()
                .trim_end_matches("<tool>low")
                .to_owned()
        })
    };
    // Only text can be added to text; a text as JSON would be quoted twice.
    assert_eq!(
        of("{{ '' + c.function.arguments }}"),
        [r#"{"at":"Ribe"}"#, r#"{"at": "Ribe"}"#]
    );
    assert_eq!(
        of("{{ c.function.arguments | tojson }}"),
        [r#"{"at": "Ribe"}"#; 2]
    );
    let pairs = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}";
    assert_eq!(of(pairs), ["at=Ribe"; 2]);
    // A text that looks the same stays: the prompt is what the model wrote.
    let either = "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}";
    assert_eq!(of(either), [r#"{"at":"Ribe"}"#, r#"{"at": "Ribe"}"#]);
    // A notation of its own is for objects.
    let own = "{% if c.function.arguments is string %}({{ c.function.arguments }}){% else %}\
        {% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endif %}";
    assert_eq!(of(own), ["at=Ribe"; 2]);
}

#[test]
fn a_system_text_joins_the_first_message_where_there_is_no_such_role() {
    let template = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}\
        {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let brief = |role: &str| json!([{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    assert_eq!(prompt(template, brief("system")), "<user>Be brief.\n\nHi");
    assert_eq!(
        prompt(template, brief("developer")),
        "<user>Be brief.\n\nHi"
    );
    let tools = json!([{"type": "function", "function": {"name": "tide"}}]);
    let with_tools = prompt_with(template, brief("system"), Some(tools));
    assert!(
        with_tools.starts_with("<user>Be brief.\n\nYou can call these functions:\n"),
        "{with_tools}"
    );
    assert!(with_tools.ends_with("plain words.\n\nHi"), "{with_tools}");
    // A template that prints the role takes a developer; one that takes systems only at the beginning gets one.
    assert_eq!(
        prompt(CHATML, brief("developer")),
        "<developer>Be brief.<user>Hi"
    );
    let first = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}\
        {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let two = json!([{"role": "system", "content": "a"}, {"role": "system", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "system", "content": "d"}, {"role": "user", "content": "e"}]);
    assert_eq!(prompt(first, two), "<system>a\n\nb<user>c<user>d\n\ne");
}

#[test]
fn parts_are_a_list_or_joined_as_the_template_needs() {
    let parts = |kind: &str| {
        json!([{"role": "user", "content": [
        {"type": kind, "text": "def f():"}, {"type": kind, "text": " return 1"}]}])
    };
    let lists = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% if not loop.last %}{{ '\n\n' }}{% endif %}\
        {% endfor %}{% endif %}{% endfor %}";
    assert_eq!(prompt(lists, parts("text")), "def f():\n\n return 1");
    assert_eq!(prompt(lists, parts("input_text")), "def f():\n\n return 1");
    assert_eq!(prompt(CHATML, parts("text")), "<user>def f(): return 1");
    assert_eq!(
        prompt(
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            parts("text")
        ),
        "def f(): return 1"
    );
    let mistral = "{% for m in messages %}[INST]{{ '' + m.content }}[/INST]{% endfor %}";
    assert_eq!(
        prompt(mistral, parts("text")),
        "[INST]def f():\n\n return 1[/INST]"
    );
    // Where a role takes no list, its parts are joined as another role's list is.
    let some = "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}\
        {{ m.content | map(attribute='text') | join(' ') }}{% else %}{{ '' + m.content }}{% endif %}{% endfor %}";
    let mut answer = parts("text");
    answer[0]["role"] = "assistant".into();
    assert_eq!(prompt(some, answer), "def f():  return 1");
    // A template of parts alone.
    let only =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
    assert_eq!(
        prompt(only, json!([{"role": "user", "content": "plain"}])),
        "plain"
    );
}

#[test]
fn tools_are_an_empty_list_only_where_the_template_fails_without() {
    let user = || json!([{"role": "user", "content": "Hi"}]);
    let needs =
        "{% for t in tools %}{{ t }}{% endfor %}{{ tools is none }} {{ messages[0].content }}";
    assert_eq!(prompt(needs, user()), "False Hi");
    assert_eq!(
        prompt("{{ tools is none }} {{ messages[0].content }}", user()),
        "True Hi"
    );
}

#[test]
fn a_tool_has_what_the_template_needs() {
    // Names the format of calls that it writes.
    let template = "{# <tool_call> #}{% for t in tools %}{{ 'a ' + t.function.name }}{{ ' b ' + t.function.description }}\
        {{ ' c ' + t.function.parameters | tojson }}\n{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let user = json!([{"role": "user", "content": "Hi"}]);
    let bare = json!([{"type": "function", "function": {"name": "tide"}}]);
    let null = json!([{"type": "function", "function": {"name": "tide", "description": null, "parameters": null}}]);
    for tools in [bare.clone(), null] {
        assert_eq!(
            prompt_with(template, user.clone(), Some(tools)),
            "a tide b  c {\"type\": \"object\", \"properties\": {}}\nHi"
        );
    }
    // A template that takes it as it is gets it as it is.
    let any = "{# <tool_call> #}{{ tools | tojson }}{{ messages[0].content }}";
    let shown = prompt_with(any, user, Some(bare));
    assert!(
        !shown.contains("description") && !shown.contains("parameters"),
        "{shown}"
    );
}

#[test]
fn several_calls_go_one_by_one_where_a_message_takes_one() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% if m.tool_calls %}\
        {% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}\
        {{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments }}{% endif %}{% endfor %}";
    let call = |id: &str, at: &str| {
        json!({"id": id, "type": "function",
        "function": {"name": "tide", "arguments": format!("\"{at}\"")}})
    };
    let messages = json!([{"role": "user", "content": "?"},
        {"role": "assistant", "content": "So.", "tool_calls": [call("x", "a"), call("y", "b")]},
        {"role": "tool", "tool_call_id": "y", "content": "high"},
        {"role": "tool", "tool_call_id": "x", "content": "low"}]);
    assert_eq!(
        prompt(template, messages),
        "<user>?<assistant>So.tide\"a\"<tool>low<assistant>tide\"b\"<tool>high"
    );
}

#[test]
fn ids_names_and_empty_lists_are_what_the_template_needs() {
    let template = "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}\
        {{ raise_exception('nine') }}{% endif %}{{ c.id }} {{ c.function.name }}{{ c.function.arguments }}{% endfor %}\
        {% if m.role == 'tool' %}{% if m.name is not defined %}{{ raise_exception('name') }}{% endif %} \
        {{ m.name }} {{ m.tool_call_id }} {% endif %}{{ m.content or '' }}{% endfor %}";
    let shown = prompt(template, called(&Value::Null));
    let id = shown.split(['?', ' ']).nth(2).unwrap();
    assert_eq!(id.len(), 9, "{shown}");
    assert!(shown.ends_with(&format!(" tide {id} low")), "{shown}");
    // What clients send that means no calls.
    let strict = "{% for m in messages %}{% if m.tool_calls is defined %}{{ m.tool_calls[0].id }}{% endif %}\
        {{ m.content }}{% endfor %}";
    for calls in [Value::Null, json!([])] {
        let messages = json!([{"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": calls}]);
        assert_eq!(prompt(strict, messages), "ab");
    }
}

/// Templates that need what only requests have are not rendered before, so that messages go in as they are.
#[test]
fn a_template_that_renders_no_probe_gets_messages_as_they_are() {
    let template =
        "{{ date + '' }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let parsed = ChatTemplate::parse(template).unwrap();
    let mut options = RenderOptions::default();
    let fit = Fit::of(&parsed, options.clone());
    options.extra.insert("date".into(), "today".into());
    let mut messages = vec![
        Message::new("system", "Be brief."),
        Message::new("user", "Hi"),
    ];
    fit.fit(&mut messages, &mut options).unwrap();
    assert_eq!(
        parsed.render(&messages, &options).as_deref(),
        Ok("today<system>Be brief.<user>Hi")
    );
}
